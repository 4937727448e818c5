"""Availability: which clients are available in a round."""

import dataclasses
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from fedax.core.hyper import Declared, hyper
from fedax.core.scheduling.rule import Rule
from fedax.errors import InvalidInput
from fedax.utils.random import MOST_SEED, Index
from fedax.utils.shares import whole_part

AVAILABILITY: dict[str, type["Availability"]] = {}
"""Rules of availability by their name in experiment files."""


class Availability(Rule, ABC):
    r"""A rule that says which clients are available in a round; the others are not drawn.

    A new rule is one frozen dataclass with `available`; by its name (`NightOnly` is `"night_only"`)
    experiment files have it too. Its fields are its parameters.

    >>> @dataclasses.dataclass(frozen=True)
    ... class EvenRounds(Availability):
    ...     def available(self, key, round, clients):
    ...         return jnp.full(clients, round % 2 == 0)
    >>> Availability.of("even_rounds")
    EvenRounds()
    >>> del AVAILABILITY["even_rounds"]
    """

    known: ClassVar[dict[str, Any]] = AVAILABILITY
    argument = "availability"

    @abstractmethod
    def available(self, key: Key[Array, ""], round: Index, clients: int) -> Bool[Array, "clients"]:
        """Returns which clients are available.

        Args:
            key: the random stream of this round's availability, for all draws of the round.
            round: its number, from 0.
            clients: how many there are.
        """

    def check(self, clients: int) -> None:
        """Refuses a number of clients that the rule does not fit, before anything is compiled."""


@dataclasses.dataclass(frozen=True)
class Daily(Declared, Availability):
    """Day and night: every client is available for the same share of a day.

    A client's hour in round 0 is a whole number of rounds, drawn once, from `seed`, whatever the
    seed of a run. It is available from hour 0 of its day on.

    Args:
        fraction: of a day for which a client is available, in (0, 1], rounded to whole rounds but
            at least one.
        period: rounds of a day, at least 1.
        spread: the part of a day over which the hours in round 0 are drawn, in [0, 1]: with 1 all
            over the world, with 0 the same hour.
        seed: of the hours.

    >>> day = Daily(0.5, period=4, spread=0.0)
    >>> [int(day.available(jax.random.key(0), t, clients=1)[0]) for t in range(6)]
    [1, 1, 0, 0, 1, 1]
    """

    fraction: float = hyper(0.5, low=0.0, open_low=True, high=1.0)
    period: int = hyper(24, low=1)
    spread: float = hyper(1.0, low=0.0, high=1.0)
    seed: int = hyper(0, low=0, high=MOST_SEED)

    def available(self, key: Key[Array, ""], round: Index, clients: int) -> Bool[Array, "clients"]:
        # in rounds: over how many the hours are drawn, and for how many a client is available
        span = max(1, whole_part(self.spread, self.period))
        duration = max(1, math.floor(self.fraction * self.period + 0.5))
        # from the rule's own seed: the same clients are available in runs with different seeds
        hours = jax.random.randint(jax.random.key(self.seed), (clients,), 0, span, jnp.int32)
        return (jnp.asarray(round, jnp.int32) % self.period + hours) % self.period < duration


@dataclasses.dataclass(frozen=True)
class Trace(Declared, Availability):
    r"""Intervals of rounds in which clients are available.

    Client `clients[i]` is available in the rounds from `first[i]` to before `end[i]`; one without
    any interval is never available.

    Args:
        clients: numbers of clients, from 0; one may occur several times.
        first: the first round of each interval, at least 0.
        end: the round after its last one.
        repeat: whether it begins anew at the largest `end`; otherwise no client is available
            afterwards.

    >>> trace = Trace(clients=[0, 1], first=[0, 1], end=[2, 4])
    >>> [trace.available(jax.random.key(0), t, clients=2).tolist() for t in range(4)]
    [[True, False], [True, True], [False, True], [False, True]]
    """

    clients: Sequence[int] | np.ndarray
    first: Sequence[int] | np.ndarray
    end: Sequence[int] | np.ndarray
    repeat: bool = hyper(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("clients", "first", "end"):
            column = tuple(map(operator.index, getattr(self, name)))
            if len(column) != len(self.clients):
                raise TypeError(f"{name}: got {len(column)} numbers, clients {len(self.clients)}")
            object.__setattr__(self, name, column)

    def check(self, clients: int) -> None:
        unknown = set(self.clients) - set(range(clients))
        if unknown:
            allowed = f"numbers of clients, 0 to {clients - 1}"
            raise InvalidInput.of("Trace(clients=...)", unknown.pop(), allowed)

    def available(self, key: Key[Array, ""], round: Index, clients: int) -> Bool[Array, "clients"]:
        client = jnp.asarray(self.clients, jnp.int32)
        first = jnp.asarray(self.first, jnp.int32)
        end = jnp.asarray(self.end, jnp.int32)
        now = jnp.asarray(round, jnp.int32)
        if self.repeat:
            now = now % max(self.end, default=1)
        # a client with several intervals is available in any of them
        return jnp.zeros(clients, bool).at[client].max((first <= now) & (now < end))
