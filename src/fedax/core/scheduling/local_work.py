"""Local work: how much a client does in a round."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedax.core.hyper import MOST_COUNT, check_declared, hyper
from fedax.errors import InvalidInput
from fedax.utils.numbers import python_numbers
from fedax.utils.random import Index

LEAST_SYNC = 1e-6
"""The smallest probability of communication after a step."""
SMALLEST_LUCK = math.log(2.0**-24)
"""Logarithm of the smallest uniform number above 0 that the coins of a round come from."""


class Work(NamedTuple):
    """One client's local work in one round: minibatch steps, and the examples of a full
    minibatch.
    """

    steps: Index
    batch: Index


class LocalWork(eqx.Module):
    """The amount of work of a round's clients.

    It is the part of a `Schedule` with the arguments `epochs`, `epoch_steps`, `steps`,
    `batch_size`, `order`, `times`, `stragglers` and `sync_probability`, which are described there.
    Probabilities are leaves of the pytree: numbers, or in a sweep over them arrays.
    """

    _: dataclasses.KW_ONLY
    epochs: int | tuple[int, int] = hyper(1, low=1, pair=())
    epoch_steps: Literal["ceil", "floor"] = hyper("ceil", choices=("ceil", "floor"))
    steps: int | tuple[int, int] | None = hyper(None, kind=int, low=1, pair=(), optional=True)
    batch_size: int | tuple[int, int | str] | Literal["full"] = hyper(
        32, low=1, pair=("all",), words=("full",)
    )
    order: Literal["shuffled", "given"] = hyper("shuffled", choices=("shuffled", "given"))
    times: tuple[int, ...] | None = eqx.field(static=True, default=None, converter=python_numbers)
    stragglers: float = hyper(0.0, low=0.0, high=1.0)
    sync_probability: float | None = hyper(
        None, kind=float, low=LEAST_SYNC, high=1.0, optional=True
    )

    def __check_init__(self) -> None:
        check_declared(self)
        times = self.times
        is_rising = times is None or (
            bool(times)
            and all(map(counts, times))
            and all(a < b for a, b in itertools.pairwise(times))
        )
        if not is_rising:
            allowed = f"rising whole numbers from 1 to {MOST_COUNT}, or None"
            raise InvalidInput.of("Schedule(times=...)", times, allowed)

    @property
    def rounds(self) -> int | None:
        """The most rounds there can be; None for any number."""
        return None if self.times is None else len(self.times)

    @property
    def drawn(self) -> bool:
        """Whether a client's work is a matter of chance that other clients do not share."""
        return can_happen(self.stragglers) or any(
            isinstance(v, tuple) for v in (self.epochs, self.steps, self.batch_size)
        )

    def widest(self, largest: int, filled: bool = False) -> int:
        """Returns the largest possible minibatch, if no client has more than `largest` examples.

        Args:
            largest: examples.
            filled: whether clients with fewer examples than a minibatch repeat them.
        """
        if isinstance(self.top_batch, str):
            return largest
        return self.top_batch if filled else min(self.top_batch, largest)

    @property
    def top_batch(self) -> int | str:
        """The size of the largest minibatch; a text for all examples of a client."""
        return self.batch_size[1] if isinstance(self.batch_size, tuple) else self.batch_size

    def work(
        self, key: Key[Array, ""], size: Index, round: Index, shared: Key[Array, ""] | None = None
    ) -> Work:
        """Draws the work of a client with `size` examples in one round.

        Args:
            key: the client's random stream of that round.
            size: its examples.
            round: the number of the round.
            shared: a random stream of that round that all clients have in common, needed for
                `sync_probability`.
        """
        # one key for each draw, whether it is made or not: an option does not change the others'
        # draws
        keys = jax.random.split(key, 4) if self.drawn else (key,) * 4
        batch_key, amount_key, straggler_key, part_key = keys
        if self.batch_size == "full":
            batch = size
        elif isinstance(self.batch_size, tuple):
            low, top = self.batch_size
            # a client with fewer than `low` examples has one batch of all of them
            high = jnp.asarray(size) if isinstance(top, str) else jnp.minimum(top, size)
            batch = jax.random.randint(batch_key, (), jnp.minimum(low, size), high + 1, jnp.int32)
        else:
            batch = self.batch_size
        amount: Any = self.epochs if self._is_in_epochs else self.steps
        if self.times is not None:
            # `times` counts steps from the start of the run
            amount = jnp.diff(jnp.asarray((0, *self.times), jnp.int32))[round]
        if self.sync_probability is not None:
            assert shared is not None, "clients without a common stream"
            amount = self._draw_geometric(shared)
        if isinstance(amount, tuple):
            amount = jax.random.randint(amount_key, (), amount[0], amount[1] + 1, jnp.int32)
        if can_happen(self.stragglers):
            is_late = jax.random.uniform(straggler_key, (), jnp.float32) < single(self.stragglers)
            partial_amount = jax.random.randint(
                part_key, (), 1, jnp.asarray(amount, jnp.int32) + 1, jnp.int32
            )
            amount = jnp.where(is_late, partial_amount, amount)
        return Work(self._count_steps(amount, size, batch, jnp.maximum), batch)

    def _draw_geometric(self, key: Key[Array, ""]) -> Any:
        """Draws the steps up to and including the first of which a coin says that it ends the
        round.
        """
        tail = self._log_tail
        if isinstance(tail, float) and tail == -math.inf:
            return 1
        # in (0, 1], so that the logarithm is finite
        uniform = 1 - jax.random.uniform(key, (), jnp.float32)
        # inverts the geometric law: more than k steps have the probability (1 - p)^k
        return 1 + jnp.floor(jnp.log(uniform) / single(tail)).astype(jnp.int32)

    @property
    def _log_tail(self) -> Any:
        """The logarithm of the probability that a coin does not end the round."""
        p = self.sync_probability
        assert p is not None, "no coins"
        # within a sweep p is a traced array
        if not real(p):
            return jnp.log1p(-p)
        return -math.inf if p == 1 else math.log1p(-p)

    @property
    def _is_in_epochs(self) -> bool:
        return self.steps is None and self.times is None and self.sync_probability is None

    def _count_steps(
        self, amount: Any, size: Any, batch: Any, larger: Callable[[Any, Any], Any] = max
    ) -> Any:
        """Returns the steps of an amount of work, which is in epochs or in steps already."""
        if not self._is_in_epochs:
            return amount
        if self.epoch_steps == "ceil":
            return amount * -(-size // batch)
        if isinstance(self.batch_size, tuple):
            # B of the formula is the number of the schedule, also where a client has fewer examples
            batch = larger(batch, self.batch_size[0])
        # over all epochs at once: a short last batch is not rounded up in each of them
        return larger(amount * size // batch, 1)

    def most_steps(self, largest: int) -> tuple[str, Any]:
        """Returns the argument that sets the steps, and the most steps of a round.

        `largest` is the size of the largest client.
        """
        if self.sync_probability is not None:
            # the steps that the smallest draw gives
            longest = SMALLEST_LUCK / self._log_tail
            rounded = int(longest) if isinstance(longest, float) else longest.astype(jnp.int32)
            return "sync_probability", 1 + rounded
        name = "epochs" if self._is_in_epochs else "steps"
        if self.times is not None:
            name = "times"
        # the most epochs, at the smallest batch
        most = self._count_steps(self._amount_bounds[1], largest, self._batch_bounds(largest)[0])
        return name, most

    def check_steps(self, largest: int) -> None:
        """Refuses more steps of a round than a 32-bit number counts, if no client has more than
        `largest` examples.
        """
        name, most = self.most_steps(largest)
        if self._is_in_epochs and self.epoch_steps == "floor":
            # `_count_steps` forms this product in 32 bits before it divides
            most = max(most, self._amount_bounds[1] * largest)
        if most > MOST_COUNT:
            got = f"{getattr(self, name)}, with {most} steps or examples of the largest client"
            allowed = f"at most {MOST_COUNT} steps, and examples, of a round"
            raise InvalidInput.found(f"Schedule({name}=...)", got, allowed)

    def equal_steps(self, sizes: Sequence[int]) -> bool:
        """Returns whether clients of these sizes always take equally many steps."""
        if self.sync_probability is not None:
            return True
        least, most = self._amount_bounds
        # a part of one step is that step
        if least != most or (can_happen(self.stragglers) and most > 1):
            return False
        if not self._is_in_epochs or self.batch_size == "full":
            return True
        steps = {
            self._count_steps(most, n, batch)
            for n in map(int, sizes)
            for batch in self._batch_bounds(n)
        }
        return len(steps) == 1

    def mean_steps(self, size: int) -> float:
        """Returns the expected steps of a round of a client with `size` examples.

        With `times` it is the mean over all rounds.

        Of a drawn batch size, the steps at its mean.
        """
        # the last time is the number of all steps
        amount = (
            sum(self._amount_bounds) / 2 if self.times is None else self.times[-1] / len(self.times)
        )
        if self.sync_probability is not None:
            amount = 1 / self.sync_probability
        # a straggler does a uniform part
        lost_share = self.stragglers * (1 - (amount + 1) / (2 * amount))
        amount = amount * (1 - lost_share)
        if self._is_in_epochs and self.epoch_steps == "floor":
            return max(amount * size // self._mean_batch(size), 1)
        return amount * (self.mean_epoch(size) if self._is_in_epochs else 1)

    def mean_epoch(self, size: int) -> float:
        """Returns the minibatches in an epoch of a client, at the mean batch size."""
        return -(-size // self._mean_batch(size))

    def _mean_batch(self, size: int) -> float:
        """Returns B of a client's steps; of a drawn batch size, its mean."""
        return sum(self._batch_bounds(size)) / 2

    @property
    def _amount_bounds(self) -> tuple[int, int]:
        """The least and the most epochs, or steps, of a round; with `times` both are the steps of
        the longest round.
        """
        if self.times is not None:
            longest = max(b - a for a, b in itertools.pairwise((0, *self.times)))
            return longest, longest
        amount = self.epochs if self.steps is None else self.steps
        return amount if isinstance(amount, tuple) else (amount, amount)

    def _batch_bounds(self, size: int) -> tuple[int, int]:
        """Returns the least and the largest B from which the steps of a client with `size` examples
        follow.

        It is the schedule's number, which may be more than `size`; a drawn number is at most
        `size` where the pair allows that.
        """
        if self.batch_size == "full":
            return size, size
        if isinstance(self.batch_size, tuple):
            low, top = self.batch_size
            return low, max(low, size if isinstance(top, str) else min(top, size))
        return self.batch_size, self.batch_size


def counts(value: Any) -> bool:
    """Returns whether a value is a whole number from 1 on that fits into 32 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_COUNT


def real(value: Any) -> bool:
    """Returns whether a value is a number and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def can_happen(probability: float | Float[Array, ""]) -> bool:
    """Returns whether an event can happen. One whose probability differs within a sweep can."""
    return not isinstance(probability, int | float) or probability > 0


def single(value: float | Float[Array, ""]) -> Any:
    """Returns a number that single-precision draws are compared with."""
    return value if isinstance(value, int | float) else value.astype(jnp.float32)
