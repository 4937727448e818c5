"""Several hosts: processes that JAX has connected, each with devices of its own, as one simulation."""

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
from jax._src.distributed import global_state  # the store of the coordinator has no public name
from jax.experimental import multihost_utils

from fedax.engine.distributed import abort as ending
from fedax.engine.distributed.collectives import Meeting, Word
from fedax.engine.distributed.process_group import Team
from fedax.errors import FedaxError, InvalidInput
from fedax.utils.arguments import checked_call

HEARTBEAT = 20
"""Seconds without a sign of life after which a process counts as gone, and the others end."""
_LOOK = 5.0
"""Seconds of one look for another's word; between two looks Ctrl-C is heard."""


@checked_call
def connect_hosts(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> Team:
    """Connects this process with those on other hosts; from then on simulations use the devices of all.

    Call it on every host before anything is computed, then run the same program everywhere: `fedax.run` gives all of them the
    same history. It is `jax.distributed.initialize` with shorter patience for a host that has gone; where that has been called
    already, nothing happens. Under Slurm, Open MPI and Kubernetes no argument is needed.

    Args:
        coordinator: address and port of process 0, such as `"10.0.0.5:1234"`; by default the variable `JAX_COORDINATOR_ADDRESS`,
            or the launcher's.
        processes: how many there are; by default the variable `JAX_NUM_PROCESSES`, or the launcher's.
        process: the number of this one, from 0; by default the variable `JAX_PROCESS_ID`, or the launcher's.

    Returns:
        The processes as a team, with `rank` and `size`.

    Raises:
        InvalidInput: numbers out of range. FedaxError: no coordinator is known, or it does not answer.

    Example:
        >>> import fedax
        >>> team = fedax.connect_hosts("10.0.0.5:1234", processes=2, process=0)  # doctest: +SKIP
    """
    if not jax.distributed.is_initialized():
        processes = _number("processes", processes, "JAX_NUM_PROCESSES")
        process = _number("process", process, "JAX_PROCESS_ID")
        if processes is not None and process is not None and process >= processes:
            raise InvalidInput.of("connect_hosts(process=...)", process, f"whole numbers from 0 to {processes - 1}")
        try:
            jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT)
        except (ValueError, RuntimeError) as error:
            hint = "Give coordinator, processes and process, or start it by a launcher such as srun."
            raise FedaxError(f"the hosts cannot be connected: {error} {hint}") from error
    return team_of_hosts()


def _number(name: str, given: int | None, variable: str) -> int | None:
    text = os.environ.get(variable) if given is None else given
    if text is None:
        return None
    low = 1 if name == "processes" else 0
    if isinstance(text, bool) or not str(text).isdigit() or int(text) < low:
        raise InvalidInput.of(f"connect_hosts({name}=...)", text, f"whole numbers >= {low}")
    return int(text)


def team_of_hosts() -> Team:
    """The processes that JAX has connected; alone where there is one."""
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return Team()
    ending.install()
    return Hosts()


_meetings = itertools.count()


class Hosts(Meeting):
    """See `Meeting`. Words go over the store of JAX's coordinator, where somebody who waits can lose patience.

    All processes have all examples and the same state, so nothing is spread.
    """

    name = "simulation on several hosts"

    def __init__(self) -> None:
        self.rank, self.size = jax.process_index(), jax.process_count()

    def share(self, value: Any) -> Any:
        data = pickle.dumps(value) if self.rank == 0 else b""
        size = self._all(len(data))[0]
        room = np.zeros(1 << max(10, (size - 1).bit_length()), np.uint8)  # few sizes, because each is a program
        room[: len(data)] = np.frombuffer(data, np.uint8)
        return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(room))[:size].tobytes())

    def spread(self, arrays: dict[str, Any], rows: Collection[str]) -> dict[str, Any]:
        return self.share(arrays)

    def gathered(self, word: Word, patience: float) -> list[Word] | None:
        return self._all(word, time.monotonic() + patience)

    def _all(self, value: Any, end: float = math.inf) -> Any:
        """Everybody's values, or None if they have not come in time."""
        client, meeting = global_state.client, next(_meetings)
        assert client is not None
        client.key_value_set(f"fedax/{meeting}/{self.rank}", base64.b85encode(pickle.dumps(value)).decode())
        found = []
        for rank in range(self.size):
            text = None
            while text is None:
                wait = min(_LOOK, end - time.monotonic())
                if wait <= 0:
                    return None
                try:
                    text = client.blocking_key_value_get(f"fedax/{meeting}/{rank}", int(1000 * wait) + 1)
                except jax.errors.JaxRuntimeError as error:
                    if "DEADLINE_EXCEEDED" not in str(error):
                        raise
            found.append(pickle.loads(base64.b85decode(text)))
        if meeting:  # everybody is here, so everybody has read what was said at the last one
            client.key_value_delete(f"fedax/{meeting - 1}/{self.rank}")
        return found
