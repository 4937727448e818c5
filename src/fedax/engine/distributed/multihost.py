"""Simulation over several hosts: processes connected by JAX, each with its own devices."""

import base64
import itertools
import math
import os
import pickle
import time
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedax.engine.distributed import abort
from fedax.engine.distributed.collectives import Collectives, RankStatus
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.errors import FedaxError, InvalidInput

# the store of the coordinator has no public name
from fedax.utils.jax_internals import global_state

HEARTBEAT = 20
"""Seconds without a heartbeat after which a process counts as lost and the others end."""
_POLL = 5.0
"""Seconds of one blocking wait for another rank; Python handles Ctrl-C only between two waits."""


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
        InvalidInput: numbers out of range.
        FedaxError: no coordinator is known, or it does not answer.

    Example:
        >>> import fedax
        >>> group = fedax.connect_hosts("10.0.0.5:1234", processes=2, process=0)  # doctest: +SKIP
    """
    if not jax.distributed.is_initialized():
        processes = _read_number("processes", processes, "JAX_NUM_PROCESSES")
        process = _read_number("process", process, "JAX_PROCESS_ID")
        if processes is not None and process is not None and process >= processes:
            raise InvalidInput.of(
                "connect_hosts(process=...)", process, f"whole numbers from 0 to {processes - 1}"
            )
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


def _read_number(name: str, value: int | None, variable: str) -> int | None:
    """Returns an argument, or the number in the environment variable; None if there is neither."""
    text = os.environ.get(variable) if value is None else value
    if text is None:
        return None
    low = 1 if name == "processes" else 0
    if not str(text).isdigit() or int(text) < low:
        raise InvalidInput.of(f"connect_hosts({name}=...)", text, f"whole numbers >= {low}")
    return int(text)


def multihost_group() -> ProcessGroup:
    """Returns the group of processes that JAX has connected, or a group of one."""
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return ProcessGroup()
    # an uncaught exception of one process would leave the others in a collective
    abort.install_excepthook()
    return HostProcesses()


_calls = itertools.count()
"""Numbers of `allgather` calls, equal on all ranks because all ranks make the same calls."""


class HostProcesses(Collectives):
    """Group of processes connected by JAX.

    Statuses go through the key-value store of JAX's coordinator, because waiting there can time
    out, unlike a collective on devices. All processes hold all examples and the same state, so
    `scatter` is a broadcast.
    """

    name = "simulation on several hosts"

    def __init__(self) -> None:
        self.rank, self.size = jax.process_index(), jax.process_count()

    def broadcast(self, value: Any) -> Any:
        data = pickle.dumps(value) if self.rank == 0 else b""
        size = self._allgather(len(data))[0]
        # padded to a power of two: every size is compiled as its own program
        buffer = np.zeros(1 << max(10, (size - 1).bit_length()), np.uint8)
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        return pickle.loads(
            np.asarray(multihost_utils.broadcast_one_to_all(buffer))[:size].tobytes()
        )

    def scatter(self, arrays: dict[str, Any], rows: Collection[str]) -> dict[str, Any]:
        return self.broadcast(arrays)

    def allgather(self, status: RankStatus, timeout: float) -> list[RankStatus] | None:
        return self._allgather(status, time.monotonic() + timeout)

    def _allgather(self, value: Any, deadline: float = math.inf) -> Any:
        """Gathers a value from all ranks, or returns None after the deadline (`time.monotonic`)."""
        client, call = global_state.client, next(_calls)
        assert client is not None
        # as text: the values of the store are strings
        client.key_value_set(
            f"fedax/{call}/{self.rank}", base64.b85encode(pickle.dumps(value)).decode()
        )
        values = []
        for rank in range(self.size):
            text = None
            while text is None:
                wait = min(_POLL, deadline - time.monotonic())
                if wait <= 0:
                    return None
                try:
                    text = client.blocking_key_value_get(
                        f"fedax/{call}/{rank}", int(1000 * wait) + 1
                    )
                except jax.errors.JaxRuntimeError as error:
                    if "DEADLINE_EXCEEDED" not in str(error):
                        raise
            values.append(pickle.loads(base64.b85decode(text)))
        if call:  # all ranks have entered this call, so all have read the values of the one before
            client.key_value_delete(f"fedax/{call - 1}/{self.rank}")
        return values
