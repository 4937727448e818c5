"""Runs one client in isolation, as a separate process does: MPI ranks and Flower's devices."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedax.communication.channel import decode
from fedax.core.task import Ragged, Task
from fedax.engine.round.backend import PhaseWork
from fedax.engine.round.client import CompiledClient, Part, Setup


def single_client_task(task: Task, k: int) -> Task:
    """Returns the task with the examples of client k only."""
    single = eqx.tree_at(lambda t: t.train, task, Ragged.of([task.train.client(k)]))
    for split in ("validation", "test"):
        data: Ragged | None = getattr(task, split)
        if data is not None:
            client_data = Ragged.of([data.client(k)], where=split, allow_empty=True)
            single = eqx.tree_at(lambda t, s=split: getattr(t, s), single, client_data)
    return single


def sizes_only(data: Ragged, sizes: Sequence[int]) -> Ragged:
    """Returns data of clients with these sizes but without examples, where only sizes are known."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    empty = {
        name: np.zeros((0, *values.shape[1:]), values.dtype) for name, values in data.arrays.items()
    }
    return Ragged(empty, offsets, len(sizes), max(sizes))


class SingleClient(CompiledClient):
    """A client whose examples are the only ones in the arrays, whatever its number."""

    def locate(self, data: Ragged) -> Part:
        # its number names random streams only; its rows are the first ones here
        return Part.of(data, 0)


def run_single_client(
    phase_work: PhaseWork, setup: Setup, rows: dict[str, PyTree], index: Int[Array, ""]
) -> Any:
    """Runs the work of the only client here.

    Returns its upload, its memories afterwards, and `PhaseWork.broken_part` of both.
    """
    upload, new_states = phase_work(
        SingleClient(setup, index, phase_work.round, phase_work.root, phase_work.occurrence), rows
    )
    return (
        upload,
        new_states,
        phase_work.broken_part((decode(upload.value)[0], upload.weight), rows, new_states),
    )
