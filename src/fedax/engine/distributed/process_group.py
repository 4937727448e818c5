"""Interface to the processes (ranks) of a run."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any


class ProcessGroup:
    """Group of a single process; engines over several processes subclass it.

    Attributes:
        rank: the number of this process, from 0. Rank 0 writes files.
        size: the number of processes.
    """

    rank: int = 0
    size: int = 1

    @contextlib.contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Runs a block on all ranks and raises on all of them if it fails on one.

        The block must not communicate: a rank that fails would leave the others waiting inside it.
        """
        yield

    @contextlib.contextmanager
    def abort_on_error(self) -> Iterator[None]:
        """Runs a block that communicates, and aborts all ranks if one raises."""
        yield

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
        return facts

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any rank."""
        return flag

    def broadcast(self, value: Any) -> Any:
        """Returns the value of rank 0 on all ranks."""
        return value

    def scatter(self, arrays: dict[str, Any], rows: Collection[str]) -> dict[str, Any]:
        """Distributes the arrays of rank 0.

        Arrays named in `rows` have a first axis (clients,), of which each rank gets its own
        client's row; the others are broadcast.
        """
        return arrays
