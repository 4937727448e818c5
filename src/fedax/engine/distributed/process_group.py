"""The processes that take part in a run."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any


class Team:
    """The processes that run together, here one alone; engines of several have their own.

    Attributes:
        rank: the number of this process, from 0. Rank 0 keeps files.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @contextlib.contextmanager
    def jointly(self) -> Iterator[None]:
        """A block without any communication that all ranks do; if it fails on one, it fails on all."""
        yield

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A block with communication: an exception of one rank, for which the others would wait for ever, ends them all."""
        yield

    def agree(self, facts: Callable[[], dict[str, Any]], **more: Any) -> Callable[[], dict[str, Any]]:
        """The facts that make a run what it is, once it is clear that they, and `more`, are the same on all ranks."""
        return facts

    def any(self, asked: bool) -> bool:
        """Whether it holds on some rank."""
        return asked

    def share(self, value: Any) -> Any:
        """The value that rank 0 has."""
        return value

    def spread(self, arrays: dict[str, Any], rows: Collection[str]) -> dict[str, Any]:
        """The arrays that rank 0 has; of those with a row for each client, the rows that are this rank's."""
        return arrays
