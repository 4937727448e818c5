"""Collectives of an MPI program."""

import atexit
import math
import time
from collections.abc import Collection
from typing import Any

import numpy as np

from fedax.engine.distributed import abort
from fedax.engine.distributed.collectives import Collectives, RankStatus


class Ranks(Collectives):
    """Group of the ranks of an MPI communicator.

    Statuses go over a duplicate of the communicator, so that they cannot be mistaken for messages
    of a round.

    Args:
        comm: an mpi4py communicator.
    """

    name = "MPI engine"

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        if type(comm).__module__.startswith("mpi4py") and comm.size > 1:
            abort.install_excepthook()
            _report_exit(self)

    def merge_configs(self, facts: list[dict[str, Any]]) -> dict[str, Any]:
        # ranks that hold one client each may differ in their data; a task of all clients must be
        # the same everywhere
        is_split = all(config.get("task.clients") == 1 for config in facts) and self.size > 1
        if not is_split:
            return facts[self.rank]
        own_config = facts[self.rank]
        names = ("task.examples", "data.train", "data.test", "data.validation")
        data = {name: [config.pop(name, None) for config in facts] for name in names}
        return own_config | data | {"task.clients": self.size}

    def broadcast(self, value: Any) -> Any:
        return self.comm.bcast(value)

    def scatter(self, arrays: dict[str, Any], rows: Collection[str]) -> dict[str, Any]:
        # array by array, so that no rank holds the states of all clients but rank 0
        names = self.comm.bcast(sorted(arrays))
        return {
            name: self._scatter_rows(arrays.get(name))
            if name in rows
            else self.comm.bcast(arrays.get(name))
            for name in names
        }

    def _scatter_rows(self, rows: Any) -> np.ndarray:
        """Returns this rank's row, shape (1, ...), of an array (clients, ...) on rank 0."""
        return np.asarray(self.comm.scatter(None if self.rank else list(rows)))[None]

    def allgather(self, status: RankStatus, timeout: float) -> list[RankStatus] | None:
        deadline = time.monotonic() + timeout
        comm = _status_communicator(self.comm, deadline)
        # the barrier can be given up, `allgather` cannot; after the barrier all ranks are about to
        # call it
        if comm is None or not _wait(comm.Ibarrier(), deadline):
            return None
        return comm.allgather(status)


_duplicates: list[tuple[Any, Any]] = []
"""Communicators, each with its duplicate for statuses."""


def _status_communicator(comm: Any, deadline: float) -> Any:
    """Returns the duplicate of a communicator, made at the first call.

    Returns None if other ranks do not take part in time.
    """
    for original, duplicate in _duplicates:
        if original == comm:
            return duplicate
    # without blocking, so that a rank that never gets here runs into the timeout
    duplicate, request = comm.Idup()
    if not _wait(request, deadline):
        return None
    _duplicates.append((comm, duplicate))
    return duplicate


def _wait(request: Any, deadline: float) -> bool:
    """Returns whether a request completes before the deadline.

    Sleeps between polls: with more ranks than cores, a busy wait would take the core from the rank
    it waits for.
    """
    pause = 0.0
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause + 1e-5, 0.005)
    return True


_reporting: list[Any] = []
"""Communicators for which `_report_exit` is registered."""


def _report_exit(ranks: Ranks) -> None:
    """Makes a rank that exits report it to ranks that still wait in a collective."""
    if any(comm == ranks.comm for comm in _reporting):
        return
    _reporting.append(ranks.comm)
    atexit.register(
        ranks.allgather,
        RankStatus("it has ended its program, while other ranks have not"),
        math.inf,
    )
