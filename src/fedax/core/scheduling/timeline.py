"""Who works when: rows that are known before a round is trained.

With an asynchronous server, or one that does not wait for all clients, it follows from the devices
alone. A compiled run reads one row for every round; a server that waits for its cohort draws it in
the round itself.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from fedax.core.history import JOULES, SECONDS
from fedax.utils.random import Index

NO_SLOT = 1 << 30
"""Slot of a version that no client trains on: out of range, so that writing to it has no effect."""


class Versions(NamedTuple):
    """The versions that the clients of a server step received.

    A version is the number of server steps before it. Versions that clients at work, or the buffer,
    still refer to lie in slots; a slot that is free again is used by a later version.

    Attributes:
        numbers: of the versions.
        slots: where they lie.
        factors: on the changes of the clients' uploads, by the staleness.
        stored: the slot of the version that this step ends; `NO_SLOT` if no client received it.
    """

    numbers: Int[Array, "*rows cohort"]
    slots: Int[Array, "*rows cohort"]
    factors: Float[Array, "*rows cohort"]
    stored: Int[Array, "*rows"]


class Row(NamedTuple):
    """Who counts in some rounds or server steps, or in one of them; whole numbers have 32 bits.

    Attributes:
        clients: those whose uploads count, in the order of their draw or dispatch, and padding.
        working: how many count; None where there is no padding.
        sent: how many were sent the message of this round or version.
        discarded: uploads that arrived since the last row and were too stale.
        versions: that the clients received; None where all receive that of the round.
    """

    clients: Int[Array, "*rows capacity"]
    working: Int[Array, "*rows"] | None
    sent: Int[Array, "*rows"]
    discarded: Int[Array, "*rows"]
    versions: Versions | None = None


def row_at(rows: Row | None, index: Index) -> Row | None:
    """Returns one of some rows."""
    return jax.tree.map(lambda column: column[index], rows)


class Timeline:
    """Who counts in the rounds of a run, and when. This one has no clock."""

    def rows(self, first: int, count: int, padded: int | None = None) -> Row | None:
        """Returns who counts in some rounds, with a first axis (count,), padded with zeros to
        (padded,); None where the rounds draw their cohorts.
        """
        return None

    def logged(self, first: int, count: int, traffic: Sequence[Any]) -> dict[str, np.ndarray]:
        """Returns what the clock notes of some rounds, shape (count,), in 64 bits whatever the type
        of the model.

        Args:
            first: number of the first round.
            count: how many.
            traffic: of each phase, with a first axis over the rounds.
        """
        return {}

    def slots(self, steps: int) -> int:
        """Returns how many versions of the model the first server steps store at once."""
        return 0


class Step(NamedTuple):
    """A round, or a step of an asynchronous server, that is known before it is trained.

    Attributes:
        clients: whose uploads count, in the order of their draw or dispatch.
        sent: clients that received the message of this round or version.
        seconds: since the step before.
        joules: of the uploads that arrived, discarded ones included.
        discarded: uploads that were too stale.
        versions: that the clients received.
        slots: where these lie.
        stored: the slot of the version that this step ends.
        slots_used: by all versions so far.
    """

    clients: Sequence[int]
    sent: int
    seconds: float
    joules: float
    discarded: int = 0
    versions: Sequence[int] = ()
    slots: Sequence[int] = ()
    stored: int = NO_SLOT
    slots_used: int = 0


class KnownTimeline(Timeline):
    """A timeline of steps that are known before they are trained.

    Attributes:
        capacity: the most clients of a step.
    """

    capacity: int

    @abstractmethod
    def steps(self, first: int, count: int) -> list[Step]:
        """Returns some steps."""

    def versions(self, first: int, steps: Sequence[Step]) -> Versions | None:
        """Returns the versions that the clients of steps received, of which `first` is the number
        of the first one; None where all receive that of the round.
        """
        return None

    def rows(self, first: int, count: int, padded: int | None = None) -> Row:
        steps = self.steps(first, count)
        clients: Any = np.zeros((count, self.capacity), np.int32)
        for row, step in zip(clients, steps, strict=True):
            row[: len(step.clients)] = step.clients
        versions = self.versions(first, steps)
        working = column([len(step.clients) for step in steps]) if versions is None else None
        sent = column([step.sent for step in steps])
        discarded = column([step.discarded for step in steps])
        padding = (padded or count) - count
        return jax.tree.map(
            lambda rows: np.pad(rows, [(0, padding), *[(0, 0)] * (rows.ndim - 1)]),
            Row(clients, working, sent, discarded, versions),
        )

    def logged(self, first: int, count: int, traffic: Sequence[Any] = ()) -> dict[str, np.ndarray]:
        steps = self.steps(first, count)
        return {
            SECONDS: np.asarray([step.seconds for step in steps], np.float64),
            JOULES: np.asarray([step.joules for step in steps], np.float64),
        }


def column(values: Sequence[Any]) -> Any:
    """Returns whole numbers of steps as an array of 32 bits."""
    return np.asarray(values, np.int32)
