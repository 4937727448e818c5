"""Pieces of robust rules: distances, ranks of Krum, sorted uploads, and what precedes a rule."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedax.core.federation import Gathered
from fedax.utils.layout import Vector, accumulator
from fedax.utils.norms import lengths, power_of_two, scale_of

_FIRST, _LAST = -(1 << 20), 1 << 20
"""Exponents below and above those of all squares."""


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
    mantissa, exponent = squared_distances(uploads.value - center[None], valid).normalized()
    exponent = jnp.where(valid[None], exponent, _LAST)
    # among equally far ones the earlier in the cohort; each is its own nearest
    exponent = jnp.where(jnp.eye(valid.shape[0], dtype=bool), 2 * _FIRST, exponent)
    ranks = jnp.argsort(jnp.lexsort((mantissa, exponent), axis=1), axis=1).astype(jnp.int32)
    is_near = valid[None] & (ranks < jnp.maximum(count - byzantine, 1))
    # half precision may not hold the sum of the models
    dtype = uploads.value.dtype
    rows = jnp.where(valid[:, None], uploads.value, 0).astype(accumulator(dtype))
    counts = jnp.maximum(is_near.sum(1, dtype=jnp.int32), 1).astype(rows.dtype)
    mixed = jnp.where(valid[:, None], is_near.astype(rows.dtype) @ rows / counts[:, None], 0)
    return Gathered(mixed.astype(dtype), uploads.weights, uploads.ids, valid)


class ScaledSquares(NamedTuple):
    r"""Numbers $m \cdot 4^e$ whose range no float type has.

    Attributes:
        value: m, at least 0.
        exponent: e, a whole number.
    """

    value: Float[Array, "..."]
    exponent: Int[Array, "..."]

    def normalized(self) -> tuple[Float[Array, "..."], Int[Array, "..."]]:
        """Returns mantissas and exponents to the base 2, by which the numbers are ordered: first
        by the exponent.

        What is not finite comes last.
        """
        mantissa, exponent = jnp.frexp(self.value)
        exponent = jnp.where(mantissa == 0, _FIRST, exponent + 2 * self.exponent)
        is_finite = jnp.isfinite(self.value)
        return jnp.where(is_finite, mantissa, 0), jnp.where(is_finite, exponent, _LAST)


def squared_distances(
    rows: Float[Array, "capacity dim"], valid: Bool[Array, "capacity"]
) -> ScaledSquares:
    """Returns the squared distances between rows, (capacity, capacity), up to a common factor;
    those of invalid rows mean nothing.

    Each pair of rows has its own exponent, 0 where squares fit without one: a hostile client's huge
    row must not make distances between other ones underflow.
    """
    rows = jnp.where(valid[:, None], rows, 0).astype(accumulator(rows.dtype))
    largest = jnp.max(jnp.abs(rows), axis=1, initial=0)
    # differences of the largest numbers fit, too
    half = jnp.where(largest.max() > jnp.finfo(rows.dtype).max / 2, 0.5, 1).astype(rows.dtype)
    rows, largest = rows * half, largest * half

    def measure(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        row, size = pair
        scale = power_of_two(jnp.maximum(largest, size))
        squares = (((rows - row[None]) / scale[:, None]) ** 2).sum(1)
        # frexp has mantissas from 1/2 to 1, so that its exponent of 2^e is e + 1
        return squares, jnp.frexp(scale)[1].astype(jnp.int32) - 1

    # row by row: all differences at once are capacity x capacity x dim
    return ScaledSquares(*jax.lax.map(measure, (rows, largest)))


def krum_ranks(
    squares: ScaledSquares, valid: Bool[Array, "capacity"], byzantine: Any
) -> Int[Array, "capacity"]:
    """Returns the rank of each row by Krum's score, from 0; of equal ones the earlier is first,
    and invalid ones are last.

    The score is the sum of a row's squared distances to its n - f - 2 closest other ones, or to one
    if that is none.
    """
    position, count = jnp.arange(valid.shape[0], dtype=jnp.int32), valid.sum(dtype=jnp.int32)
    is_other = valid[None] & (position[:, None] != position[None])
    mantissa, exponent = squares.normalized()
    order = jnp.lexsort((mantissa, jnp.where(is_other, exponent, 2 * _LAST)), axis=1)
    closest = ScaledSquares(*(jnp.take_along_axis(part, order, axis=1) for part in squares))
    # the only one that is left has no neighbours
    counted = jnp.minimum(jnp.maximum(count - byzantine - 2, 1), count - 1)
    # in units of the largest one that counts, so that none overflows
    last = closest.exponent[:, jnp.maximum(counted - 1, 0)]
    values = jnp.ldexp(closest.value, 2 * (closest.exponent - last[:, None]))
    sums = jnp.where(position[None] < counted, values, 0).sum(1)
    mantissa, exponent = ScaledSquares(sums, last).normalized()
    ranking = jnp.lexsort((mantissa, exponent, ~valid))
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
