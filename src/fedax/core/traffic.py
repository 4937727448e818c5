"""Traffic of a run in exact bits."""

import dataclasses

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
