"""Simulation over several hosts: processes connected by JAX, each with its own devices."""

import functools
import os
import pickle
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedax.engine.distributed.process_group import ProcessGroup
from fedax.errors import FedaxError

HEARTBEAT = 20
"""Seconds without a heartbeat after which a process counts as lost and the others end."""


def connect_hosts(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> ProcessGroup:
    """Connects this process to those on other hosts.

    Later simulations use the devices of all hosts.

    Call it on every host before anything is computed, then run the same program everywhere:
    `fedax.run` returns the same history on all hosts. It calls `jax.distributed.initialize` with a
    shorter heartbeat timeout, unless that has been called already. Under Slurm, Open MPI and
    Kubernetes no argument is needed.

    Args:
        coordinator: address and port of process 0, such as `"10.0.0.5:1234"`; by default the
            variable `JAX_COORDINATOR_ADDRESS`, or the launcher's.
        processes: the number of processes; by default the variable `JAX_NUM_PROCESSES`, or the
            launcher's.
        process: the number of this one, from 0; by default the variable `JAX_PROCESS_ID`, or the
            launcher's.

    Returns:
        The group of all processes, with `rank` and `size`.

    Raises:
        FedaxError: no coordinator is known, or it does not answer.

    Example:
        >>> import fedax
        >>> group = fedax.connect_hosts("10.0.0.5:1234", processes=2, process=0)  # doctest: +SKIP
    """
    if not jax.distributed.is_initialized():
        processes = _read_number(processes, "JAX_NUM_PROCESSES")
        process = _read_number(process, "JAX_PROCESS_ID")
        try:
            jax.distributed.initialize(
                coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT
            )
        except (ValueError, RuntimeError) as error:
            hint = (
                "Give coordinator, processes and process, or start it by a launcher such as srun."
            )
            raise FedaxError(f"the hosts cannot be connected: {error} {hint}") from error
    return multihost_group()


def _read_number(value: int | None, variable: str) -> int | None:
    """Returns an argument, or the number in the environment variable; None if there is neither."""
    text = os.environ.get(variable) if value is None else value
    return None if text is None else int(text)


def multihost_group() -> ProcessGroup:
    """Returns the group of processes that JAX has connected, or a group of one."""
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return ProcessGroup()
    return _connected_hosts()


class HostProcesses(ProcessGroup):
    """Group of processes connected by JAX, which all hold all examples and the same state."""

    name = "simulation on several hosts"

    def __init__(self) -> None:
        self.rank = jax.process_index()
        self.size = jax.process_count()
        self.report_exit()

    def abort(self, code: int) -> None:
        # a regular exit would wait in JAX's shutdown barrier for the other processes
        os._exit(code)

    def allgather(self, value: Any) -> list[Any]:
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.asarray(multihost_utils.process_allgather(np.int32(data.size))).tolist()
        # padded to a power of two: every size is compiled as its own program
        padded = np.zeros(1 << (max(sizes) - 1).bit_length(), np.uint8)
        padded[: data.size] = data
        rows = np.asarray(multihost_utils.process_allgather(padded))
        return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


@functools.cache
def _connected_hosts() -> ProcessGroup:
    return HostProcesses()
