"""Traffic of a run in exact bits."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bits of every round by direction, summed over all participants. Whole numbers, exact.

    Attributes:
        down: server to clients, shape (rounds,).
        up: clients to server, or over the links of a graph, where a message counts once for each
            neighbour; shape (rounds,).
    """

    down: np.ndarray
    up: np.ndarray

    @property
    def total(self) -> int:
        return int(self.down.sum() + self.up.sum())

    @property
    def cumulative(self) -> np.ndarray:
        """Bits spent before round t, for t = 0 to rounds.

        Aligned with `History.rounds` by indexing.
        """
        return np.concatenate([[0], np.cumsum(self.down + self.up)])


def pack(bits: int) -> tuple[int, int]:
    """Splits a count of bits into two 32-bit numbers, which compiled programs return exactly."""
    return bits >> 24, bits & 0xFFFFFF


def unpack(high: Any, low: Any) -> np.ndarray | np.int64:
    """Inverts `pack`, also for arrays."""
    return (np.asarray(high, np.int64) << 24) + np.asarray(low, np.int64)
