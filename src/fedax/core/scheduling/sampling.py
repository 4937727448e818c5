"""Sampling: the rules by which a cohort is drawn."""

import dataclasses
import functools
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedax.core.scheduling.rule import Rule
from fedax.utils.random import Index

SAMPLING: dict[str, "type[Sampling]"] = {}
"""Sampling rules by their name in experiment files."""

FEW = 4096
"""Up to so many clients a draw may look at all of them."""

Drawn = tuple[Int[Array, "capacity"], Int[Array, ""] | int]
"""Client ids, and how many of them count; the rest is padding."""


@dataclasses.dataclass(frozen=True)
class Sampling(Rule, ABC):
    r"""A rule by which a cohort is drawn.

    A new rule is one frozen dataclass with `draw`; by its name (`PowerOfTwo` is `"power_of_two"`)
    experiment files have it too. Its fields are its parameters.

    >>> @dataclasses.dataclass(frozen=True)
    ... class First(Sampling):
    ...     def draw(self, key, offsets, cohort):
    ...         return jnp.arange(cohort, dtype=jnp.int32), cohort
    >>> Sampling.of("first")
    First()
    >>> del SAMPLING["first"]

    Attributes:
        by_size: whether larger clients are drawn more often, so that a mean with equal weights
            estimates $\sum_k p_k$; else the weights are $n_k$.
        repeats: whether a client may be drawn several times.
        may_be_empty: whether it may happen that nobody is drawn.
    """

    by_size: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    may_be_empty: ClassVar[bool] = False

    known: ClassVar[dict[str, Any]] = SAMPLING
    argument = "sampling"

    def capacity(self, cohort: int, clients: int) -> int:
        """Returns the largest number of clients that `draw` can return."""
        return cohort

    @abstractmethod
    def draw(self, key: Key[Array, ""], offsets: Int[Array, "bounds"], cohort: int) -> Drawn:
        """Draws clients.

        Args:
            key: the random stream of this draw.
            offsets: client k has the examples `offsets[k]` to `offsets[k + 1]`.
            cohort: how many are asked for, at least 1 and at most all.

        Returns:
            Client ids, `capacity` many, and how many of them count.
        """

    def weights(self, offsets: Int[Array, "bounds"]) -> Float[Array, "clients"] | None:
        """Returns the weights of all clients, for a rule that draws one after the other in
        proportion to them; None for another rule.
        """
        return None

    def among(
        self,
        key: Key[Array, ""],
        offsets: Int[Array, "bounds"],
        cohort: int,
        available: Bool[Array, "clients"],
    ) -> Drawn:
        """Draws clients among those who are available; fewer if there are not enough of them.

        By default the others count as clients without examples, and drop out if they are drawn
        nevertheless. The rules of this library draw among the available clients.
        """
        weights = self.weights(offsets)
        if weights is not None:
            return weighted_subset(key, weights, cohort, available)
        sizes = jnp.where(available, jnp.diff(offsets), 0)
        ids, count = self.draw(key, jnp.concatenate([offsets[:1], jnp.cumsum(sizes)]), cohort)
        # padding behind `count` drops out too
        return first(ids, available[ids] & (jnp.arange(ids.shape[0], dtype=jnp.int32) < count))


@dataclasses.dataclass(frozen=True)
class Uniform(Sampling):
    """Uniformly without replacement."""

    def weights(self, offsets: Int[Array, "bounds"]) -> Float[Array, "clients"]:
        return jnp.ones(offsets.shape[0] - 1, jnp.float32)

    def draw(self, key: Key[Array, ""], offsets: Int[Array, "bounds"], cohort: int) -> Drawn:
        return subset(key, offsets.shape[0] - 1, cohort), cohort


@dataclasses.dataclass(frozen=True)
class Proportional(Sampling):
    """With replacement, each time with probability $p_k = n_k/n$."""

    by_size = True
    repeats = True

    def draw(self, key: Key[Array, ""], offsets: Int[Array, "bounds"], cohort: int) -> Drawn:
        # the owner of a uniformly drawn example is a client drawn by its size; a range must not be
        # empty, even where no client is available
        tickets = jax.random.randint(key, (cohort,), 0, jnp.maximum(offsets[-1], 1), jnp.int32)
        owners = jnp.searchsorted(offsets, tickets, side="right").astype(jnp.int32) - 1
        # where no client has examples, the search ends behind the last one
        return jnp.minimum(owners, offsets.shape[0] - 2), cohort


@dataclasses.dataclass(frozen=True)
class ProportionalWithoutReplacement(Sampling):
    """One after the other from those that are left, with probability $p_k$ over their sum."""

    by_size = True

    def weights(self, offsets: Int[Array, "bounds"]) -> Float[Array, "clients"]:
        return jnp.diff(offsets).astype(jnp.float32)

    def draw(self, key: Key[Array, ""], offsets: Int[Array, "bounds"], cohort: int) -> Drawn:
        clients = offsets.shape[0] - 1
        # drawing again until a client is new costs little only if the cohort is a small part
        if clients <= FEW or 2 * cohort > clients:
            return weighted_subset(key, self.weights(offsets), cohort)
        return successive_subset(key, offsets, cohort), cohort


@dataclasses.dataclass(frozen=True)
class Poisson(Sampling):
    """Each client with probability `cohort / clients`."""

    may_be_empty = True

    def capacity(self, cohort: int, clients: int) -> int:
        return clients

    def draw(self, key: Key[Array, ""], offsets: Int[Array, "bounds"], cohort: int) -> Drawn:
        clients = offsets.shape[0] - 1
        chosen = jax.random.uniform(key, (clients,), jnp.float32) < jnp.float32(cohort / clients)
        return first(jnp.arange(clients, dtype=jnp.int32), chosen)


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def subset(key: Key[Array, ""], clients: int, count: int) -> Int[Array, "count"]:
    """Draws a uniform subset without replacement by Floyd's algorithm.

    The cost depends on the cohort, not on the population.

    Source: Bentley and Floyd, A sample of brilliance, Communications of the ACM 30(9), 1987.
    """
    # step i draws from 0 to tops[i], one number more than the step before
    tops = jnp.arange(clients - count, clients, dtype=jnp.int32)
    tickets = jax.random.randint(key, (count,), 0, tops + 1, jnp.int32)

    def step(i: Index, chosen: Int[Array, "count"]) -> Int[Array, "count"]:
        # a ticket that was drawn before is replaced by the top, which no earlier draw could give
        return chosen.at[i].set(jnp.where(jnp.any(chosen == tickets[i]), tops[i], tickets[i]))

    return jax.lax.fori_loop(0, count, step, jnp.full((count,), -1, jnp.int32))


def successive_subset(
    key: Key[Array, ""], offsets: Int[Array, "bounds"], count: int
) -> Int[Array, "count"]:
    """Draws clients one by one without replacement, in proportion to their examples.

    A client drawn before is drawn again, until it is a new one: the law of the new one is that of a
    draw from those that are left. The cost depends on the cohort and on how much of all examples it
    holds, not on the population.
    """

    def draw_client(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        done, tries, chosen = state
        # `tries` numbers the keys: the same key would give a client drawn before again and again
        row = jax.random.randint(jax.random.fold_in(key, tries), (), 0, offsets[-1], jnp.int32)
        client = jnp.searchsorted(offsets, row, side="right").astype(jnp.int32) - 1
        is_new = jnp.all(chosen != client)
        return (
            done + is_new.astype(jnp.int32),
            tries + 1,
            chosen.at[done].set(jnp.where(is_new, client, chosen[done])),
        )

    start = jnp.int32(0), jnp.int32(0), jnp.full((count,), -1, jnp.int32)
    return jax.lax.while_loop(lambda state: state[0] < count, draw_client, start)[2]


def weighted_subset(
    key: Key[Array, ""],
    weights: Float[Array, "clients"],
    count: int,
    available: Bool[Array, "clients"] | None = None,
) -> Drawn:
    r"""Draws a subset one by one without replacement, in proportion to `weights`; returns it and
    its size, which is less than `count` if fewer clients are available.

    Clients of weight 0 come last, among each other uniformly. By Gumbel's trick: the order of $\log
    w_k + G_k$ is such a draw.
    """
    noise = jax.random.gumbel(key, weights.shape, weights.dtype)
    # two sort keys: an offset that puts weights of 0 last would round their noise away
    scores = jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1)), 0) + noise
    # the last key counts first
    order = jnp.lexsort((-scores, weights <= 0)).astype(jnp.int32)
    if available is None:
        return order[:count], count
    # the available ones keep their order
    ids, available_count = first(order, available[order])
    return ids[:count], jnp.minimum(available_count, count)


def first(
    ids: Int[Array, "capacity"], chosen: Bool[Array, "capacity"]
) -> tuple[Int[Array, "capacity"], Int[Array, ""]]:
    """Moves chosen ids to the front, in their order, and counts them."""
    return ids[jnp.argsort(~chosen, stable=True)].astype(jnp.int32), jnp.sum(
        chosen, dtype=jnp.int32
    )
