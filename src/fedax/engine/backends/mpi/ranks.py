"""Collectives of an MPI program."""

import time
from typing import Any

import numpy as np

from fedax.engine.distributed.process_group import ProcessGroup


class Ranks(ProcessGroup):
    """Group of the ranks of an MPI communicator.

    Args:
        comm: an mpi4py communicator.
    """

    name = "MPI engine"

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        is_real = type(comm).__module__.startswith("mpi4py") and comm.size > 1
        if is_real and comm not in _reporting:
            _reporting.append(comm)
            self.report_exit()

    def abort(self, code: int) -> None:
        time.sleep(0.2)  # the launcher needs a moment to forward the output
        self.comm.Abort(code)

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

    def own_rows(self, rows: np.ndarray) -> np.ndarray:
        return rows[self.rank : self.rank + 1]

    def allgather(self, value: Any) -> list[Any]:
        # sleeps until all ranks are here: MPI's own wait is busy, and with more ranks than cores it
        # takes the core from the rank that it waits for
        barrier = self.comm.Ibarrier()
        while not barrier.Test():
            time.sleep(_PAUSE)
        return self.comm.allgather(value)


_PAUSE = 0.001
"""Seconds between two looks for the other ranks."""
_reporting: list[Any] = []
"""Communicators whose ranks report when they end."""
