"""Who works in a round, and how much."""

from typing import Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedax.core.errors import InvalidInput
from fedax.core.keys import Index

Sampling: TypeAlias = Literal["uniform", "proportional", "poisson"]


class Schedule(eqx.Module):
    r"""Cohorts, local work, order of minibatches, decay of the learning rate.

    Args:
        cohort: clients drawn by one `sample()`; None means everyone. From 1 to the number of clients.
        sampling: `"uniform"` draws without replacement (weights $n_k$), `"proportional"` with replacement with probability
            $p_k = n_k/n$ (equal weights), `"poisson"` each client with probability `cohort / clients` (weights $n_k$; a round
            in which nobody is drawn leaves the state as it was).
        epochs: passes over the client's examples in one round; at least 1. Ignored if `steps` is given.
        steps: minibatch steps in one round, at least 1, over as many epochs as they need.
        batch_size: examples of a minibatch, at least 1, or `"full"`. The last batch of an epoch may be short.
        order: `"shuffled"` anew in every epoch, or `"given"`.
        decay: the learning rate of round t (from 0) is multiplied by `decay ** t`; in (0, 1].
    """

    cohort: int | None = eqx.field(static=True, default=None)
    sampling: Sampling = eqx.field(static=True, default="uniform")
    epochs: int = eqx.field(static=True, default=1)
    steps: int | None = eqx.field(static=True, default=None)
    batch_size: int | Literal["full"] = eqx.field(static=True, default=32)
    order: Literal["shuffled", "given"] = eqx.field(static=True, default="shuffled")
    decay: float = eqx.field(static=True, default=1.0)

    def __check_init__(self) -> None:
        counts = {"cohort": self.cohort, "epochs": self.epochs, "steps": self.steps}
        if self.batch_size != "full":
            counts["batch_size"] = self.batch_size
        for name, value in counts.items():
            optional = name in ("cohort", "steps")
            if not ((optional and value is None) or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)):
                hint = " or None" if optional else ' or "full"' if name == "batch_size" else ""
                raise InvalidInput.of(f"Schedule({name}=...)", value, f"whole numbers >= 1{hint}")
        for name, choices in {"sampling": ("uniform", "proportional", "poisson"), "order": ("shuffled", "given")}.items():
            if getattr(self, name) not in choices:
                raise InvalidInput.of(
                    f"Schedule({name}=...)", getattr(self, name), f"one of {', '.join(map(repr, choices))}"
                )
        if not (isinstance(self.decay, int | float) and 0 < self.decay <= 1):
            raise InvalidInput.of("Schedule(decay=...)", self.decay, "numbers in (0, 1]")

    def check_population(self, clients: int) -> None:
        """Refuses a cohort larger than the population."""
        if self.cohort is not None and self.cohort > clients:
            raise InvalidInput.of("Schedule(cohort=...)", self.cohort, f"1 to {clients}, the number of clients, or None")

    @property
    def weights_equal(self) -> bool:
        """Whether the mean over a drawn cohort estimates sum_k p_k with equal weights (else with weights n_k)."""
        return self.cohort is not None and self.sampling == "proportional"

    def capacity(self, clients: int) -> int:
        """The largest number of clients that `draw` can return."""
        return clients if self.cohort is None or self.sampling == "poisson" else self.cohort

    def steps_of(self, size: Index | Int[Array, "cohort"]) -> Index | Int[Array, "cohort"]:
        """Minibatch steps of a client with `size` examples."""
        if self.steps is not None:
            return self.steps
        return self.epochs * (1 if self.batch_size == "full" else -(-size // self.batch_size))

    def draw(
        self, key: Key[Array, ""], offsets: Int[Array, "bounds"]
    ) -> tuple[Int[Array, "capacity"], Int[Array, ""] | int]:
        """Client ids, and how many of them count (the rest are fillers)."""
        clients = offsets.shape[0] - 1
        if self.cohort is None:
            return jnp.arange(clients, dtype=jnp.int32), clients
        if self.sampling == "proportional":
            tickets = jax.random.randint(key, (self.cohort,), 0, offsets[-1], jnp.int32)
            return jnp.searchsorted(offsets, tickets, side="right").astype(jnp.int32) - 1, self.cohort
        if self.sampling == "poisson":
            chosen = jax.random.uniform(key, (clients,), jnp.float32) < jnp.float32(self.cohort / clients)
            return jnp.argsort(~chosen, stable=True).astype(jnp.int32), jnp.sum(chosen, dtype=jnp.int32)
        return subset(key, clients, self.cohort), self.cohort


def subset(key: Key[Array, ""], clients: int, count: int) -> Int[Array, "count"]:
    """A uniform subset without replacement by Floyd's algorithm: the cost depends on the cohort, not on the population.

    Source: Bentley and Floyd, A sample of brilliance, Communications of the ACM 30(9), 1987.
    """
    tops = jnp.arange(clients - count, clients, dtype=jnp.int32)
    tickets = jax.random.randint(key, (count,), 0, tops + 1, jnp.int32)

    def step(i: Index, chosen: Int[Array, "count"]) -> Int[Array, "count"]:
        return chosen.at[i].set(jnp.where(jnp.any(chosen == tickets[i]), tops[i], tickets[i]))

    return jax.lax.fori_loop(0, count, step, jnp.full((count,), -1, jnp.int32))


def mean_weights(
    schedule: Schedule, share: Float[Array, "cohort"], count: Index, clients: int, drawn: bool
) -> tuple[Float[Array, "cohort"], Float[Array, ""]]:
    """The weights that make the mean over a cohort an estimate of sum_k p_k, and the cohort's part of everybody's."""
    equal = drawn and schedule.weights_equal
    weights = jnp.ones_like(share) if equal else share
    working = jnp.where(jnp.arange(share.shape[0], dtype=jnp.int32) < count, weights, 0)
    return weights, working.sum() / (clients if equal else 1)
