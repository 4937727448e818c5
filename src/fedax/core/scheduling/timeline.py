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


class Versions(NamedTuple):
    """The versions that the clients of a server step received.

    A version is the number of server steps before it. Versions that clients at work, or the buffer,
    still refer to lie in slots; a slot that is free again is used by a later version.

    Attributes:
        numbers: of the versions.
        slots: where they lie.
        factors: on the changes of the clients' uploads, by the staleness.
        stored: the slot of the version that this step ends.
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
        seconds: since the round or step before; on the host in 64 bits, and unused in programs.
        joules: of the uploads that arrived, discarded ones included.
        versions: that the clients received; None where all receive that of the round.
    """

    clients: Int[Array, "*rows capacity"]
    working: Int[Array, "*rows"] | None
    sent: Int[Array, "*rows"]
    discarded: Int[Array, "*rows"]
    seconds: Float[Array, "*rows"]
    joules: Float[Array, "*rows"]
    versions: Versions | None = None


def row_at(rows: Row | None, index: Index) -> Row | None:
    """Returns one of some rows."""
    return jax.tree.map(lambda column: column[index], rows)


class Timeline:
    """Who counts in the rounds of a run, and when. This one has no clock."""

    def rows(self, first: int, count: int, padded: int | None = None) -> Row | None:
        """Returns who counts in some rounds, with a first axis (count,), padded to (padded,); None
        where the rounds draw their cohorts.
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


class KnownTimeline(Timeline):
    """A timeline of rounds, or server steps, that are known before they are trained."""

    @abstractmethod
    def steps(self, first: int, count: int) -> list[Row]:
        """Returns the row of each of some steps."""

    def rows(self, first: int, count: int, padded: int | None = None) -> Row:
        rows = self.steps(first, count)
        # padding is never read
        rows += rows[-1:] * ((padded or count) - count)
        return jax.tree.map(_stack, *rows)

    def logged(self, first: int, count: int, traffic: Sequence[Any] = ()) -> dict[str, np.ndarray]:
        rows: Any = self.rows(first, count)
        return {SECONDS: rows.seconds, JOULES: rows.joules}


def _stack(*values: Any) -> np.ndarray:
    column = np.asarray(values)
    # whole numbers have 32 bits in programs
    return column.astype(np.int32) if column.dtype.kind == "i" else column
