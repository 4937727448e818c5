"""The ranks of an MPI program."""

import atexit
import math
import time
from collections.abc import Collection
from typing import Any

import numpy as np

from fedax.engine.distributed import abort as ending
from fedax.engine.distributed.collectives import Meeting, Word


class Ranks(Meeting):
    """See `Meeting`. Ranks meet over a communicator of their own, beside that of the messages.

    Args:
        comm: an mpi4py communicator.
    """

    name = "MPI engine"

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        if type(comm).__module__.startswith("mpi4py") and comm.size > 1:
            ending.install()
            _close_at_exit(self)

    def joined(self, facts: list[dict[str, Any]]) -> dict[str, Any]:
        parted = all(found.get("task", {}).get("clients") == 1 for found in facts) and self.size > 1
        if not parted:
            return facts[self.rank]
        data = {split: [found["data"].pop(split) for found in facts] for split in ("train", "test")}
        own = facts[self.rank]
        return own | {"data": own["data"] | data, "task": own["task"] | {"clients": self.size}}

    def share(self, value: Any) -> Any:
        return self.comm.bcast(value)

    def spread(self, arrays: dict[str, Any], rows: Collection[str]) -> dict[str, Any]:
        names = self.comm.bcast(sorted(arrays))
        return {
            name: self._own_row(arrays.get(name)) if name in rows else self.comm.bcast(arrays.get(name)) for name in names
        }

    def _own_row(self, rows: Any) -> np.ndarray:
        return np.asarray(self.comm.scatter(None if self.rank else list(rows)))[None]

    def gathered(self, word: Word, patience: float) -> list[Word] | None:
        end = time.monotonic() + patience
        comm = _own_communicator(self.comm, end)
        if comm is None or not _within(comm.Ibarrier(), end):
            return None
        return comm.allgather(word)


_apart: list[tuple[Any, Any]] = []
"""Communicators, each with the one over which its ranks meet."""


def _own_communicator(comm: Any, end: float) -> Any:
    for known, own in _apart:
        if known == comm:
            return own
    own, request = comm.Idup()
    if not _within(request, end):
        return None
    _apart.append((comm, own))
    return own


def _within(request: Any, end: float) -> bool:
    """Whether a request completes in time. It sleeps while it waits, because there may be fewer cores than ranks."""
    pause = 0.0
    while not request.Test():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause + 1e-5, 0.005)
    return True


_closing: list[Any] = []


def _close_at_exit(ranks: Ranks) -> None:
    """Lets a rank that leaves, by `sys.exit` for example, tell those that still want to run something together."""
    if any(known == ranks.comm for known in _closing):
        return
    _closing.append(ranks.comm)
    atexit.register(ranks.gathered, Word("it has ended its program, while other ranks have not"), math.inf)
