"""Who works in a round, and how much."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedax.core.errors import InvalidInput
from fedax.core.keys import Index

Sampling: TypeAlias = Literal["uniform", "proportional", "proportional_without_replacement", "poisson"]


class Work(NamedTuple):
    """One client's local work in one round: minibatch steps, and the examples of a full minibatch."""

    steps: Index
    batch: Index


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Schedule(eqx.Module):
    r"""Cohorts, local work, order of minibatches, decay of the learning rate.

    A pair stands for a number drawn anew for every client and round, uniformly from all whole numbers between the two, both
    included; all phases of a round see the same draw.

    >>> hybrid = Schedule(cohort=10, epochs=(2, 5), batch_size=(10, "all"))  # FedAWARE's Hybrid+
    >>> Schedule(times=(1, 2, 4, 8), batch_size="full").rounds  # local GD that communicates at these steps
    4

    Args:
        cohort: clients drawn by one `sample()`; None means everyone. From 1 to the number of clients.
        sampling: `"uniform"` draws without replacement (weights $n_k$), `"proportional"` with replacement with probability
            $p_k = n_k/n$ (equal weights, with which a mean is an unbiased estimate of $\sum_k p_k$),
            `"proportional_without_replacement"` one after the other from those that are left, with probability $p_k$ over
            their sum (equal weights: the simple average of FedProx and FedDANE, Alg. 2. It is not unbiased, because a large
            client is drawn less often than `cohort` times $p_k$, and a small one more often), `"poisson"` each client with
            probability `cohort / clients` (weights $n_k$; a round in which nobody is drawn leaves the state as it was).
        epochs: passes over the client's examples in one round; at least 1, or a pair. Ignored if `steps` or `times` is given.
        steps: minibatch steps in one round, at least 1, over as many epochs as they need; or a pair.
        batch_size: examples of a minibatch, at least 1, or `"full"`, or a pair whose second number may be `"all"` of the
            client's examples. The last batch of an epoch may be short.
        order: `"shuffled"` anew in every epoch, or `"given"`.
        decay: the learning rate of round t (from 0) is multiplied by `decay ** t`; in (0, 1].
        times: the synchronisation times $t_1 < t_2 < \dots$ of local gradient descent, in steps from 0: round r (from 1) has
            $t_r - t_{r-1}$ steps, with $t_0 = 0$. Excludes `steps`; there are as many rounds as times.
        stragglers: the probability that a client does only part of its work: a uniform draw from 1 up to its epochs (or its
            steps, if the schedule is in steps). In [0, 1].
        dropouts: the probability that a drawn client never answers; it counts as not drawn. In [0, 1). Phases with everyone
            wait for everyone.
        weights: `"size"` for the objective $\sum_k \frac{n_k}{n} f_k$, `"equal"` for $\frac1N \sum_k f_k$ (not with
            proportional sampling).
    """

    cohort: int | None = eqx.field(static=True, default=None)
    sampling: Sampling = eqx.field(static=True, default="uniform")
    epochs: int | tuple[int, int] = eqx.field(static=True, default=1, converter=_tuple)
    steps: int | tuple[int, int] | None = eqx.field(static=True, default=None, converter=_tuple)
    batch_size: int | tuple[int, int | str] | Literal["full"] = eqx.field(static=True, default=32, converter=_tuple)
    order: Literal["shuffled", "given"] = eqx.field(static=True, default="shuffled")
    decay: float = eqx.field(static=True, default=1.0)
    times: tuple[int, ...] | None = eqx.field(static=True, default=None, converter=_tuple)
    stragglers: float = eqx.field(static=True, default=0.0)
    dropouts: float = eqx.field(static=True, default=0.0)
    weights: Literal["size", "equal"] = eqx.field(static=True, default="size")

    def __check_init__(self) -> None:
        self._require("cohort", self.cohort is None or _counts(self.cohort), "whole numbers >= 1 or None")
        numbers = "whole numbers >= 1, or a pair of them in order"
        self._require("epochs", _counts(self.epochs) or _pair(self.epochs), numbers)
        self._require("steps", self.steps is None or _counts(self.steps) or _pair(self.steps), f"{numbers}, or None")
        fits = self.batch_size == "full" or _counts(self.batch_size) or _pair(self.batch_size, "all")
        self._require("batch_size", fits, f"{numbers} (the second may be 'all'), or \"full\"")
        for name, choices in _CHOICES.items():
            self._require(name, getattr(self, name) in choices, f"one of {', '.join(map(repr, choices))}")
        self._require("decay", _real(self.decay) and 0 < self.decay <= 1, "numbers in (0, 1]")
        self._require("stragglers", _real(self.stragglers) and 0 <= self.stragglers <= 1, "numbers in [0, 1]")
        self._require("dropouts", _real(self.dropouts) and 0 <= self.dropouts < 1, "numbers in [0, 1)")
        times = self.times
        rising = times is None or (bool(times) and all(_counts(b - a) for a, b in zip((0, *times), times, strict=False)))
        self._require("times", rising, "rising whole numbers >= 1, or None")
        self._require("times", times is None or self.steps is None, "None if steps is given")
        both = self.weights == "equal" and self.sampling in _BY_SIZE
        self._require("weights", not both, f"'size' with sampling={self.sampling!r}")

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise InvalidInput.of(f"Schedule({name}=...)", getattr(self, name), allowed)

    def check_population(self, clients: int) -> None:
        """Refuses a cohort larger than the population."""
        if self.cohort is not None and self.cohort > clients:
            raise InvalidInput.of("Schedule(cohort=...)", self.cohort, f"1 to {clients}, the number of clients, or None")

    @property
    def rounds(self) -> int | None:
        """The most rounds there can be; None for any number."""
        return None if self.times is None else len(self.times)

    @property
    def weights_equal(self) -> bool:
        """Whether the mean over a drawn cohort estimates sum_k p_k with equal weights (else with weights n_k)."""
        return self.cohort is not None and self.sampling in _BY_SIZE

    @property
    def may_be_empty(self) -> bool:
        """Whether it may happen that nobody works in a round."""
        return self.dropouts > 0 or (self.cohort is not None and self.sampling == "poisson")

    @property
    def drawn(self) -> bool:
        """Whether a client's work is a matter of chance."""
        return self.stragglers > 0 or any(isinstance(v, tuple) for v in (self.epochs, self.steps, self.batch_size))

    def widest(self, largest: int) -> int:
        """The most examples that a minibatch can have, if no client has more than `largest`."""
        if isinstance(self.batch_size, int):
            return min(self.batch_size, largest)
        top = self.batch_size[1]
        return min(top, largest) if isinstance(top, int) else largest

    def work(self, key: Key[Array, ""], size: Index, round: Index) -> Work:
        """The work in one round of a client with `size` examples; `key` is its own of that round."""
        batch_key, amount_key, straggler_key, part_key = jax.random.split(key, 4) if self.drawn else (key,) * 4
        if self.batch_size == "full":
            batch = size
        elif isinstance(self.batch_size, tuple):
            low, top = self.batch_size
            high = jnp.asarray(size) if isinstance(top, str) else jnp.minimum(top, size)
            batch = jax.random.randint(batch_key, (), jnp.minimum(low, size), high + 1, jnp.int32)
        else:
            batch = self.batch_size
        if self.times is not None:
            amount, unit = jnp.diff(jnp.asarray((0, *self.times), jnp.int32))[round], 1
        elif self.steps is not None:
            amount, unit = self.steps, 1
        else:
            amount, unit = self.epochs, -(-size // batch)
        if isinstance(amount, tuple):
            amount = jax.random.randint(amount_key, (), amount[0], amount[1] + 1, jnp.int32)
        if self.stragglers:
            late = jax.random.uniform(straggler_key, (), jnp.float32) < self.stragglers
            part = jax.random.randint(part_key, (), 1, jnp.asarray(amount, jnp.int32) + 1, jnp.int32)
            amount = jnp.where(late, part, amount)
        return Work(amount * unit, batch)

    def equal_steps(self, sizes: Sequence[int]) -> bool:
        """Whether clients with so many examples are certain to take equally many steps in every round."""
        amount = self.epochs if self.steps is None else self.steps
        least, most = amount if isinstance(amount, tuple) else (amount, amount)
        if self.times is not None:
            least = most = max(b - a for a, b in zip((0, *self.times), self.times, strict=False))
        if least != most or (self.stragglers > 0 and most > 1):
            return False
        if self.times is not None or self.steps is not None or self.batch_size == "full":
            return True
        ends = self.batch_size if isinstance(self.batch_size, tuple) else (self.batch_size,)
        return len({-(-n // (n if isinstance(end, str) else min(end, n))) for n in map(int, sizes) for end in ends}) == 1

    def mean_steps(self, size: int) -> float:
        """The expected steps of a round (over all rounds, if there are times) of a client with `size` examples.

        Of a drawn batch size, the steps at its mean.
        """
        if self.times is not None:
            amount: Any = self.times[-1] / len(self.times)
        else:
            amount = self.epochs if self.steps is None else self.steps
            amount = sum(amount) / 2 if isinstance(amount, tuple) else amount
        late = self.stragglers * (1 - (amount + 1) / (2 * amount))  # a straggler does a uniform part
        return amount * (1 - late) * (self.mean_epoch(size) if self.steps is None and self.times is None else 1)

    def mean_epoch(self, size: int) -> float:
        """The minibatches of an epoch of a client with `size` examples; of a drawn batch size, at its mean."""
        batch: Any = self.batch_size
        if isinstance(batch, tuple):
            batch = sum(min(size, size if isinstance(end, str) else end) for end in batch) / 2
        return 1 if batch == "full" else -(-size // batch)

    def capacity(self, clients: int) -> int:
        """The largest number of clients that `draw` can return."""
        return clients if self.cohort is None or self.sampling == "poisson" else self.cohort

    def draw(
        self, key: Key[Array, ""], offsets: Int[Array, "bounds"], odds: Float[Array, "clients"] | None = None
    ) -> tuple[Int[Array, "capacity"], Int[Array, ""] | int]:
        """Client ids, and how many of them count (the rest are fillers); see `Federation.sample` for `odds`."""
        ids, count = self._invited(key, offsets, odds)
        if not self.dropouts:
            return ids, count
        lots = jax.random.uniform(jax.random.fold_in(key, 1), ids.shape, jnp.float32)
        there = (jnp.arange(ids.shape[0], dtype=jnp.int32) < count) & (lots >= self.dropouts)
        return ids[jnp.argsort(~there, stable=True)], jnp.sum(there, dtype=jnp.int32)

    def _invited(
        self, key: Key[Array, ""], offsets: Int[Array, "bounds"], odds: Float[Array, "clients"] | None
    ) -> tuple[Int[Array, "capacity"], Int[Array, ""] | int]:
        clients = offsets.shape[0] - 1
        if self.cohort is None:
            return jnp.arange(clients, dtype=jnp.int32), clients
        if odds is not None:
            return by_odds(key, odds, self.cohort), self.cohort
        if self.sampling == "proportional":
            tickets = jax.random.randint(key, (self.cohort,), 0, offsets[-1], jnp.int32)
            return jnp.searchsorted(offsets, tickets, side="right").astype(jnp.int32) - 1, self.cohort
        if self.sampling == "proportional_without_replacement":
            return by_odds(key, jnp.diff(offsets).astype(jnp.float32), self.cohort), self.cohort
        if self.sampling == "poisson":
            chosen = jax.random.uniform(key, (clients,), jnp.float32) < jnp.float32(self.cohort / clients)
            return jnp.argsort(~chosen, stable=True).astype(jnp.int32), jnp.sum(chosen, dtype=jnp.int32)
        return subset(key, clients, self.cohort), self.cohort


_BY_SIZE = ("proportional", "proportional_without_replacement")
_CHOICES = {"sampling": ("uniform", *_BY_SIZE, "poisson"), "order": ("shuffled", "given"), "weights": ("size", "equal")}


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _pair(value: Any, word: str | None = None) -> bool:
    """Whether two whole numbers in order; the second may be `word`."""
    if not (isinstance(value, tuple) and len(value) == 2 and _counts(value[0])):
        return False
    return (word is not None and value[1] == word) or (_counts(value[1]) and value[0] <= value[1])


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def subset(key: Key[Array, ""], clients: int, count: int) -> Int[Array, "count"]:
    """A uniform subset without replacement by Floyd's algorithm: the cost depends on the cohort, not on the population.

    Source: Bentley and Floyd, A sample of brilliance, Communications of the ACM 30(9), 1987.
    """
    tops = jnp.arange(clients - count, clients, dtype=jnp.int32)
    tickets = jax.random.randint(key, (count,), 0, tops + 1, jnp.int32)

    def step(i: Index, chosen: Int[Array, "count"]) -> Int[Array, "count"]:
        return chosen.at[i].set(jnp.where(jnp.any(chosen == tickets[i]), tops[i], tickets[i]))

    return jax.lax.fori_loop(0, count, step, jnp.full((count,), -1, jnp.int32))


def by_odds(key: Key[Array, ""], odds: Float[Array, "clients"], count: int) -> Int[Array, "count"]:
    r"""A subset drawn one after the other with probabilities proportional to `odds`, without replacement.

    Clients of odds 0 come last, among each other uniformly. By Gumbel's trick: the order of $\log o_k + G_k$ is such a draw.
    """
    noise = jax.random.gumbel(key, odds.shape, odds.dtype)
    # two sort keys: an offset that puts odds of 0 last would round their noise away
    scores = jnp.where(odds > 0, jnp.log(jnp.where(odds > 0, odds, 1)), 0) + noise
    return jnp.lexsort((-scores, odds <= 0))[:count].astype(jnp.int32)


class Weights(NamedTuple):
    """See `Cohort`, whose fields these are."""

    weights: Float[Array, "capacity"]
    terms: Float[Array, "capacity"]
    part: Float[Array, ""]


def cohort_weights(
    schedule: Schedule, ids: Int[Array, "capacity"], share: Float[Array, "capacity"], count: Index, clients: int, drawn: bool
) -> Weights:
    """How the clients of a cohort count; `share` is their n_k / n, and `drawn` says that the schedule's sampling drew them."""
    equal = schedule.weights == "equal"
    objective = jnp.ones_like(share) if equal else share
    weights = jnp.ones_like(share) if drawn and schedule.weights_equal else objective
    terms = jnp.where(jnp.arange(ids.shape[0], dtype=jnp.int32) < count, objective, 0)
    if drawn and schedule.cohort is not None and schedule.sampling == "proportional":
        order = jnp.argsort(ids, stable=True)  # a client's first draw comes first, and fillers after those that work
        again = jnp.diff(ids[order], prepend=-1) == 0
        terms = terms.at[order].mul(jnp.where(again, 0, 1).astype(terms.dtype))
    return Weights(weights, terms, terms.sum() / (clients if equal else 1))
