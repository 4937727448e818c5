"""Pieces of robust rules: distances, ranks of Krum, sorted uploads, and what precedes a rule."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedax.core.federation import Gathered
from fedax.utils.layout import Vector, accumulator
from fedax.utils.norms import lengths, power_of_two, scale_of


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
    valid = uploads.valid
    count = uploads.valid.sum(dtype=jnp.int32)
    squares = squared_distances(uploads.value - center[None], valid)
    squares = jnp.where(valid[None], squares, jnp.inf)
    # among equally far ones the earlier in the cohort; each is its own nearest
    squares = jnp.where(jnp.eye(valid.shape[0], dtype=bool), -1, squares)
    ranks = jnp.argsort(jnp.argsort(squares, axis=1), axis=1).astype(jnp.int32)
    is_near = valid[None] & (ranks < jnp.maximum(count - byzantine, 1))
    # half precision may not hold the sum of the models
    dtype = uploads.value.dtype
    rows = jnp.where(valid[:, None], uploads.value, 0).astype(accumulator(dtype))
    counts = jnp.maximum(is_near.sum(1, dtype=jnp.int32), 1).astype(rows.dtype)
    mixed = jnp.where(valid[:, None], is_near.astype(rows.dtype) @ rows / counts[:, None], 0)
    return Gathered(mixed.astype(dtype), uploads.weights, uploads.ids, valid)


def squared_distances(
    rows: Float[Array, "capacity dim"], valid: Bool[Array, "capacity"]
) -> Float[Array, "capacity capacity"]:
    """Returns the squared distances between rows up to a common factor; those of invalid rows mean
    nothing.

    They are in units in which the squares of the middle one of the rows fit: a hostile client's
    huge row is infinitely far, and distances between the others do not underflow.
    """
    rows = jnp.where(valid[:, None], rows, 0).astype(accumulator(rows.dtype))
    sizes = jnp.sort(jnp.where(valid, jnp.max(jnp.abs(rows), axis=1, initial=0), jnp.inf))
    rows = rows / power_of_two(sizes[jnp.maximum(valid.sum(dtype=jnp.int32) - 1, 0) // 2])

    def measure(row: Float[Array, "dim"]) -> Float[Array, "capacity"]:
        squares = ((rows - row[None]) ** 2).sum(1)
        # two rows that are too long have no difference
        return jnp.where(jnp.isnan(squares), jnp.inf, squares)

    # row by row: all differences at once are capacity x capacity x dim
    return jax.lax.map(measure, rows)


def krum_ranks(
    squares: Float[Array, "capacity capacity"], valid: Bool[Array, "capacity"], byzantine: Any
) -> Int[Array, "capacity"]:
    """Returns the rank of each row by Krum's score, from 0; of equal ones the earlier is first,
    and invalid ones are last.

    The score is the sum of a row's squared distances to its n - f - 2 closest other ones, or to one
    if that is none.
    """
    position = jnp.arange(valid.shape[0], dtype=jnp.int32)
    count = valid.sum(dtype=jnp.int32)
    is_other = valid[None] & (position[:, None] != position[None])
    closest = jnp.sort(jnp.where(is_other, squares, jnp.inf), axis=1)
    # the only one that is left has no neighbours
    counted = jnp.minimum(jnp.maximum(count - byzantine - 2, 1), count - 1)
    scores = jnp.where(position[None] < counted, closest, 0).sum(1)
    ranking = jnp.lexsort((scores, ~valid))
    return jnp.zeros_like(position).at[ranking].set(position)


def sort_uploads(uploads: Gathered[Vector]) -> tuple[Float[Array, "capacity dim"], Int[Array, ""]]:
    """Returns the uploads sorted in every coordinate, and how many count; the rows from there on
    are infinite.
    """
    values = jnp.where(uploads.valid[:, None], uploads.value, jnp.inf)
    return jnp.sort(values, axis=0), uploads.valid.sum(dtype=jnp.int32)


def clip_rows(
    rows: Float[Array, "rows dim"], bound: Float[Array, ""]
) -> tuple[Float[Array, "rows"], Float[Array, "rows dim"]]:
    r"""Returns factors and rows whose products are the rows at length $\le$ `bound`, whatever
    their lengths.
    """
    # squares of long and short rows fit; one whose length overflows would become 0
    scale = scale_of(rows, axis=1)
    length = jnp.linalg.norm(rows / scale[:, None], axis=1)
    # the bound may be larger than the length can be; 0 is not clipped
    is_clipped = scale * length > bound
    factors = jnp.where(is_clipped, bound / jnp.where(length > 0, length, 1), 1)
    return factors, rows / jnp.where(is_clipped, scale, 1)[:, None]


def median_length(
    rows: Float[Array, "capacity dim"], valid: Bool[Array, "capacity"]
) -> Float[Array, ""]:
    """Returns the median of the lengths of the valid rows: of an even number the lower middle one,
    and 0 without rows.
    """
    ordered = jnp.sort(jnp.where(valid, lengths(rows), jnp.inf))
    middle = jnp.maximum(valid.sum(dtype=jnp.int32) - 1, 0) // 2
    return jnp.where(valid.any(), ordered[middle], 0)
