"""The processes (ranks) of a run, and what they do together.

Everything follows from one blocking `allgather`: errors that all ranks raise, configurations that
have to match, stopping. An error that one rank meets within a run aborts the job, so that no rank
waits for one that has failed. A rank that ends elsewhere says so in the others' next exchange.
"""

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedax.errors import InvalidInput, RankFailed

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it."""
_ENDED = "it has ended its program, while other ranks have not"
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Environment variables set by the launchers of Open MPI, of Slurm and of MPICH and its
relatives."""

OWN_DATA = ("task.examples", "data.train", "data.test", "data.validation")
"""Facts that differ between ranks of one client each."""


def is_launched() -> bool:
    """Returns whether a launcher such as mpiexec has started this process."""
    return any(name in os.environ for name in _RANK_VARIABLES)


class ProcessGroup:
    """Group of a single process; engines over several processes subclass it.

    Attributes:
        rank: the number of this process, from 0. Rank 0 writes files.
        size: the number of processes.
        name: the engine's name, for messages.
        splits_data: whether ranks may hold one client each, with its own examples.
    """

    rank: int = 0
    size: int = 1
    name: str = ""
    splits_data: bool = False

    def allgather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, which all have to call it."""
        return [value]

    def abort(self, code: int) -> None:
        """Ends all ranks at once, with an exit code."""

    def report_exit(self) -> None:
        """Makes this rank tell those that still wait for it when its program ends."""
        # as `_exchange` sends errors
        atexit.register(self.allgather, ((_ENDED, ""), None))

    def broadcast(self, value: Any) -> Any:
        """Returns the value of rank 0 on all ranks."""
        return self._exchange(value if self.rank == 0 else None)[0]

    def own_rows(self, rows: np.ndarray) -> np.ndarray:
        """Returns those of the clients, with a first axis (clients,), that this rank holds."""
        return rows

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any rank."""
        return any(self._exchange(flag))

    @contextlib.contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Runs a block on all ranks and raises on all of them if it fails on one.

        The block must not communicate: a rank that fails would leave the others waiting inside it.
        """
        try:
            yield
        except Exception as error:
            self._exchange(error=error)
        else:
            self._exchange()

    @contextlib.contextmanager
    def abort_on_error(self) -> Iterator[None]:
        """Runs a block that communicates, and aborts all ranks if one raises."""
        try:
            yield
        except BaseException as error:
            # after an error that all ranks have raised, no rank waits
            if self.size > 1 and not getattr(error, "raised_on_all_ranks", False):
                traceback.print_exception(error)
                sys.stdout.flush()
                print(
                    f"\nfedax: rank {self.rank} of {self.size}: {_line(error)}\nAll ranks end.",
                    file=sys.stderr,
                    flush=True,
                )
                self.abort(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)
            raise

    def check_same_config(
        self, facts: Callable[[], dict[str, Any]], **settings: Any
    ) -> Callable[[], dict[str, Any]]:
        """Checks that all ranks are about to run the same configuration.

        Args:
            facts: computes the fingerprint of the run.
            settings: further values that must be equal on all ranks.

        Returns:
            A function that returns the fingerprint of the whole run.
        """
        if self.size == 1:
            return facts
        fingerprint: dict[str, Any] = {}
        with self.raise_on_all_ranks():
            fingerprint = facts()
        configs = self._exchange(settings | fingerprint)
        names = dict.fromkeys(name for config in configs for name in config)
        differing: dict[str, Any] = {}
        for name in names:
            values = [config.get(name) for config in configs]
            if any(value != values[0] for value in values):
                differing[name] = values
        # a task of all clients must be the same everywhere
        one_each = all(config.get("task.clients") == 1 for config in configs)
        splits_data = self.splits_data and one_each
        refused = [name for name in differing if not (splits_data and name in OWN_DATA)]
        with self.raise_on_all_ranks():
            if refused:
                reason = f"the ranks disagree about {', '.join(refused)}"
                raise InvalidInput.because(self.name, reason, "All must run the same.")
        return lambda: fingerprint | differing

    def _exchange(self, content: Any = None, error: BaseException | None = None) -> list[Any]:
        """Gathers the contents of all ranks; without content it is a barrier.

        Raises:
            BaseException: if any rank brings an error: its own error on that rank, `RankFailed` on
                the others.
        """
        if self.size == 1:
            if error is not None:
                raise error
            return [content]
        # an error travels like any content: its line and its traceback
        text = None
        if error is not None:
            text = _line(error), "".join(traceback.format_exception(error))
        gathered = self.allgather((text, content))
        failed = {rank: text for rank, (text, _) in enumerate(gathered) if text}
        if not failed:
            return [content for _, content in gathered]
        first = min(failed)
        line, trace = failed[first]
        if (_ENDED, "") in failed.values():
            # a rank that has ended takes part in no further exchange
            atexit.unregister(self.allgather)
        shared = error or RankFailed(f"rank {first}: {line}")
        shared.raised_on_all_ranks = True  # pyright: ignore[reportAttributeAccessIssue]
        if error is None:
            shared.add_note(f"\nThere:\n{trace}")
        raise shared


def _line(error: BaseException) -> str:
    """Returns an exception as one line, such as `DataError: client 0: ...`."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")
