"""Federated averaging with another rule in place of the mean: what the robust methods share."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from jaxtyping import Array, Key

from fedax.core import (
    Algorithm,
    Client,
    Federation,
    Gathered,
    InvalidInput,
    Schedule,
    Upload,
    Vector,
    hyper,
)
from fedax.numerics.robust import average_buckets, mix_neighbours

State = TypeVar("State")


class MixedUploads(Algorithm[State]):
    """Two steps that other papers put before a robust rule, because honest clients that differ hide
    hostile ones.

    Args:
        bucket: s, at least 1: the clients are dealt at random to buckets of s, and their means come
            to the rule (bucketing); 1 is none.
        mixing: f, at least 0 and below the number of vectors n: each is replaced by the mean of its
            n - f nearest ones (nearest-neighbour mixing); 0 is none.

    Sources: Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via
    Bucketing, ICLR 2022. Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, Fixing by
    Mixing, AISTATS 2023 (NNM). Both as in github.com/LPD-EPFL/byzfl (preaggregators.py); the papers
    were not read.
    """

    bucket: int = hyper(
        1, low=1, later=True, doc="uploads that are averaged at random before the rule; 1 is none"
    )
    mixing: int = hyper(
        0,
        low=0,
        later=True,
        doc="hostile clients that nearest-neighbour mixing expects before the rule; 0 is no mixing",
    )

    def check(self, schedule: Schedule, sizes: Sequence[int]) -> None:
        count = self.count_rows(schedule, sizes)
        if self.mixing >= count:
            allowed = f"0 to {count - 1} with {count} vectors in a round"
            raise InvalidInput.of(f"{type(self).__name__}(mixing=...)", self.mixing, allowed)

    def count_rows(self, schedule: Schedule, sizes: Sequence[int]) -> int:
        """Returns the number of vectors that come to the rule: of clients, or of their buckets."""
        return -(-schedule.capacity(len(sizes)) // self.bucket)

    def mix(
        self, uploads: Gathered[Vector], center: Vector, key: Key[Array, ""]
    ) -> Gathered[Vector]:
        """Returns the vectors that come to the rule, after `bucket` and `mixing`.

        Distances are those of differences to `center`, which does not matter but for rounding.
        """
        if self.bucket > 1:
            uploads = average_buckets(uploads, self.bucket, key)
        return mix_neighbours(uploads, self.mixing, center) if self.mixing else uploads


class Aggregation(MixedUploads[Vector]):
    """The clients' models come to the server one by one, and a rule makes the new model of them."""

    def round(self, fed: Federation, state: Vector) -> Vector:
        uploads = fed.gather(self.train, fed.sample(), state)
        return self.combine(self.mix(uploads, state, fed.key("buckets")), state)

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        return Upload(client.minimize(start=w))

    @abstractmethod
    def combine(self, uploads: Gathered[Vector], w: Vector) -> Vector:
        """Returns the new model, from those of the cohort and the one that they started from."""


class ByzantineAggregation(Aggregation):
    """A rule that withstands a number of hostile clients in a round of enough clients."""

    least_per_hostile: ClassVar[int]
    """The clients that a round needs for each hostile one, beside three."""

    byzantine: int = hyper(0, low=0, doc="f, hostile clients of a cohort at most")

    def check(self, schedule: Schedule, sizes: Sequence[int]) -> None:
        super().check(schedule, sizes)
        rows = self.count_rows(schedule, sizes)
        least = self.least_per_hostile
        most = max((rows - 3) // least, 0)
        if self.byzantine > most:
            allowed = f"0 to {most} with {rows} clients in a round: {least} f + 3 <= n"
            name = f"{type(self).__name__}(byzantine=...)"
            raise InvalidInput.of(name, self.byzantine, allowed)
