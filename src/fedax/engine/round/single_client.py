"""Runs one client in isolation, as a separate process does: MPI ranks and Flower's devices."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedax.communication.channel import decode
from fedax.core.task import Task
from fedax.engine.round.client import CompiledClient, Setup
from fedax.engine.round.phase import PhaseWork
from fedax.examples.ragged import Ragged


def single_client_task(task: Task, k: int) -> Task:
    """Returns the task with the examples of client k only."""
    parts = {
        name: Ragged.of([part[k]], where=name, allow_empty=name != "train")
        for name, part in task.data.parts.items()
    }
    # a client may have no examples in a part that the others have
    data = eqx.tree_at(
        lambda data: [getattr(data, name) for name in parts], task.data, list(parts.values())
    )
    return task.with_data(data)


def sizes_only(data: Ragged, sizes: Sequence[int]) -> Ragged:
    """Returns data of clients with these sizes but without examples, where only sizes are known."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    empty = {
        name: np.zeros((0, *values.shape[1:]), values.dtype) for name, values in data.arrays.items()
    }
    return Ragged(empty, offsets, len(sizes), max(sizes))


def run_single_client(
    phase_work: PhaseWork, setup: Setup, rows: dict[str, PyTree], index: Int[Array, ""]
) -> Any:
    """Runs the work of the only client here.

    Returns its upload, its memories afterwards, and `PhaseWork.broken_part` of both.
    """
    setup = dataclasses.replace(setup, first=index)
    client = CompiledClient(setup, index, phase_work.round, phase_work.root, phase_work.occurrence)
    upload, new_states = phase_work(client, rows)
    return (
        upload,
        new_states,
        phase_work.broken_part((decode(upload.value), upload.weight), rows, new_states),
    )
