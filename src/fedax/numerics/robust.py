"""Pieces of robust rules: distances, scores of Krum, sorted uploads, and what precedes a rule."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedax.core.federation import Gathered
from fedax.utils.layout import Vector
from fedax.utils.norms import scale_of


def average_buckets(uploads: Gathered[Vector], size: int, key: Key[Array, ""]) -> Gathered[Vector]:
    """Returns the means of buckets of uploads, drawn at random without replacement.

    The last bucket may be smaller. A bucket has the sum of its clients' weights, and the id of its
    first one.

    Source: Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via
    Bucketing, ICLR 2022.
    """
    valid = uploads.valid
    capacity = valid.shape[0]
    # valid rows first, in random order
    order = jnp.lexsort((jax.random.permutation(key, capacity), ~valid))
    order = jnp.pad(order, (0, -capacity % size), constant_values=capacity).reshape(-1, size)
    # rows beyond the end count as invalid
    is_counted = jnp.pad(valid, (0, 1))[order]
    counts = jnp.maximum(is_counted.sum(1, dtype=jnp.int32), 1).astype(uploads.value.dtype)
    rows = jnp.where(is_counted[..., None], uploads.value[jnp.minimum(order, capacity - 1)], 0)
    weights = jnp.where(is_counted, jnp.pad(uploads.weights, (0, 1))[order], 0)
    return Gathered(
        (rows / counts[:, None, None]).sum(1),
        weights.sum(1),
        uploads.ids[jnp.minimum(order[:, 0], capacity - 1)],
        is_counted[:, 0],
    )


def mix_neighbours(uploads: Gathered[Vector], byzantine: int, center: Vector) -> Gathered[Vector]:
    """Replaces every upload by the mean of its n - f nearest ones, itself included, f of the n
    expected to be hostile.

    Source: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, Fixing by Mixing: A Recipe
    for Optimal Byzantine ML under Heterogeneity, AISTATS 2023 (NNM).
    """
    valid, count = uploads.valid, uploads.valid.sum(dtype=jnp.int32)
    distances = jnp.where(
        valid[None], squared_distances(uploads.value - center[None], valid), jnp.inf
    )
    # among equally far ones the earlier in the cohort; each is its own nearest
    distances = jnp.where(jnp.eye(valid.shape[0], dtype=bool), -1, distances)
    ranks = jnp.argsort(jnp.argsort(distances, axis=1, stable=True), axis=1).astype(jnp.int32)
    is_near = valid[None] & (ranks < jnp.maximum(count - byzantine, 1))
    rows = jnp.where(valid[:, None], uploads.value, 0)
    counts = jnp.maximum(is_near.sum(1, dtype=jnp.int32), 1).astype(rows.dtype)
    mixed = jnp.where(valid[:, None], is_near.astype(rows.dtype) @ rows / counts[:, None], 0)
    return Gathered(mixed, uploads.weights, uploads.ids, valid)


def squared_distances(
    rows: Float[Array, "capacity dim"], valid: Bool[Array, "capacity"]
) -> Float[Array, "capacity capacity"]:
    """Returns the squared distances between rows up to a common factor; those of invalid rows mean
    nothing.
    """
    # squares of large and small rows fit
    scaled = rows / scale_of(jnp.where(valid[:, None], rows, 0))
    # row by row: all differences at once are capacity x capacity x dim
    return jax.lax.map(lambda row: ((scaled - row[None]) ** 2).sum(1), scaled)


def krum_scores(
    squares: Float[Array, "capacity capacity"], valid: Bool[Array, "capacity"], byzantine: Any
) -> Float[Array, "capacity"]:
    """Returns the sum of each row's squared distances to its n - f - 2 closest other ones, or to
    one if that is none; infinite for invalid rows.
    """
    position = jnp.arange(valid.shape[0], dtype=jnp.int32)
    is_other = valid[None] & (position[:, None] != position[None])
    closest = jnp.sort(jnp.where(is_other, squares, jnp.inf), axis=1)
    is_counted = position < jnp.maximum(valid.sum(dtype=jnp.int32) - byzantine - 2, 1)
    # the only one that is left has no neighbours, and must not become infinite
    sums = jnp.where(is_counted[None] & jnp.isfinite(closest), closest, 0).sum(1)
    return jnp.where(valid, sums, jnp.inf)


def sort_uploads(uploads: Gathered[Vector]) -> tuple[Float[Array, "capacity dim"], Int[Array, ""]]:
    """Returns the uploads sorted in every coordinate, and how many count; the rows from there on
    are infinite.
    """
    values = jnp.where(uploads.valid[:, None], uploads.value, jnp.inf)
    return jnp.sort(values, axis=0), uploads.valid.sum(dtype=jnp.int32)
