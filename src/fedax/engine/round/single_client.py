"""Runs one client in isolation, as a separate process does: MPI ranks and Flower's devices."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedax.core.task import Task
from fedax.engine.round.client import CompiledClient, Setup
from fedax.engine.round.phase import ClientResult, PhaseWork
from fedax.examples.federated import FederatedData
from fedax.examples.ragged import Ragged


def single_client_task(task: Task, k: int) -> Task:
    """Returns the task with the examples of client k only."""
    # a client may have no examples in a part that the others have
    parts = {
        name: Ragged.of([part[k]], where=name, allow_empty=name != "train")
        for name, part in task.data.parts.items()
    }
    return task.with_data(with_parts(task.data, parts))


def with_sizes(task: Task, sizes: Mapping[str, Sequence[int]]) -> Task:
    """Returns the task for clients of which only the sizes are known, by part of the data.

    All examples are one zero, which takes no memory.
    """
    parts = dict[str, Ragged]()
    for name, part in task.data.parts.items():
        offsets = np.concatenate([[0], np.cumsum(sizes[name])]).astype(np.int32)
        arrays = {
            name: np.broadcast_to(np.zeros((), values.dtype), (offsets[-1], *values.shape[1:]))
            for name, values in part.arrays.items()
        }
        parts[name] = Ragged(arrays, offsets, len(sizes[name]), max(sizes[name]))
    return task.with_data(with_parts(task.data, parts))


def with_parts(data: FederatedData, parts: Mapping[str, Any]) -> FederatedData:
    """Returns data with other examples in some parts, which are not checked."""
    return eqx.tree_at(
        lambda data: [getattr(data, name) for name in parts], data, list(parts.values())
    )


def run_single_client(
    phase_work: PhaseWork, setup: Setup, rows: dict[str, PyTree], index: Int[Array, ""]
) -> ClientResult:
    """Runs the work of the only client here."""
    setup = dataclasses.replace(setup, first=index)
    client = CompiledClient(setup, index, phase_work.round, phase_work.root, phase_work.occurrence)
    return phase_work(client, rows)
