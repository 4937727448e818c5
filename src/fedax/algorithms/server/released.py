"""What codes released with papers do to a cohort and its uploads, for methods that reproduce it."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedax.core import Cohort, Federation, Gathered, Vector
from fedax.core.scheduling.sampling import weighted_subset


def sample_as_released(fed: Federation) -> Cohort:
    """Samples a cohort whose weights are those of its clients in another order, unless it is
    everyone.
    """
    cohort = fed.sample()
    mixed = mixed_weights(cohort, fed.key("ids"))
    weights = jnp.where(cohort.count == fed.clients, cohort.weights, mixed)
    return dataclasses.replace(cohort, weights=weights)


def mixed_weights(cohort: Cohort, key: Key[Array, ""]) -> Float[Array, "capacity"]:
    """Returns the weights of a cohort, permuted at random among the clients that work."""
    tickets = jax.random.uniform(key, cohort.weights.shape)
    # padding sorts last, so that only the weights of clients that work change places
    return cohort.weights[jnp.lexsort((tickets, ~cohort.works))]


def with_everyone_first(fed: Federation, cohort: Cohort) -> Cohort:
    """Returns the cohort of all clients in round 0, else the given one."""
    everyone = fed.everyone
    # the same clients stay the same object, by which privacy recognizes their draw
    if cohort.ids is everyone.ids:
        return cohort
    if isinstance(fed.round, int):
        return everyone if fed.round == 0 else cohort
    # `where` needs equal shapes
    return jax.tree.map(
        lambda one, other: jnp.where(fed.round == 0, one, other),
        everyone.padded(fed.clients),
        cohort.padded(fed.clients),
    )


def exchanged(uploads: Gathered[Vector], ranks: Int[Array, "capacity"]) -> Gathered[Vector]:
    """Gives the n-th client by rank the upload of the n-th client by id.

    Weights and ids stay.
    """
    # rows of left-out clients and padding sort last on both sides
    by_rank = jnp.lexsort((ranks, ~uploads.valid))
    by_id = jnp.lexsort((uploads.ids, ~uploads.valid))
    value = uploads.value.at[by_rank].set(uploads.value[by_id])
    return Gathered(value, uploads.weights, uploads.ids, uploads.valid)


def averaged(
    uploads: Gathered[Vector], rows: Float[Array, "capacity dim"]
) -> Float[Array, "capacity dim"]:
    """Replaces every row by the mean over the clients that count, with equal weights."""
    return jnp.broadcast_to(uploads.shares(jnp.ones_like(uploads.weights)) @ rows, rows.shape)


def diversity(uploads: Gathered[Vector]) -> dict[str, Float[Array, ""]]:
    """Returns the disagreement of uploads, in both forms of the class's notes, each at least 1."""
    lengths = jnp.linalg.norm(uploads.value, axis=1)
    shares = uploads.valid.astype(lengths.dtype) / uploads.valid.sum(dtype=lengths.dtype)
    mean = shares @ uploads.value
    # opposite uploads cancel to a mean of length 0
    length = jnp.sqrt(jnp.maximum(mean @ mean, jnp.finfo(mean.dtype).tiny))
    return {
        "diversity": jnp.sqrt(shares @ lengths**2) / length,
        "diversity_2023": shares @ lengths / length,
    }


def drawing_order(
    fed: Federation, cohort: Cohort, weights: Float[Array, "clients"] | None
) -> Int[Array, "capacity"]:
    """Returns the rank of each client in the order in which clients were drawn.

    A draw by weights is in that order already. A cohort of all clients, or one that the schedule
    drew, gets a random order.
    """
    chances = jnp.ones(fed.clients, cohort.weights.dtype) if weights is None else weights
    # a ranking of the whole population, of which the cohort's clients read their place
    order, _ = weighted_subset(fed.key("ids"), chances, fed.clients)
    ranks = jnp.argsort(order).astype(order.dtype)[cohort.ids]
    if weights is None:
        return ranks
    in_order = jnp.arange(ranks.shape[0], dtype=ranks.dtype)
    return jnp.where(cohort.count == fed.clients, ranks, in_order)
