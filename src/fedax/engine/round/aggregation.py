"""Aggregation of uploads: the weighted mean, compensated sums, and the check that numbers are
finite.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedax.ops.primitives import Result, aligned, batch_size, choose, primitive
from fedax.utils.jax_internals import batching

Tree = TypeVar("Tree")

LONG = 1 << 12
"""Array sizes from which one native call is faster than the passes over memory that XLA makes of
these operations."""


def add_compensated(sums: tuple[Tree, Tree], terms: Tree) -> tuple[Tree, Tree]:
    """Adds terms to a compensated sum, whose error does not grow with the number of terms.

    Args:
        sums: the totals, and the compensation: what rounding has added to them so far. Both are
            zero at first.
        terms: to add.

    Source: Kahan, Further remarks on reducing truncation errors, Communications of the ACM 8(1),
    1965.
    """
    totals, compensation = sums
    corrected = jax.tree.map(jnp.subtract, terms, compensation)
    new_totals = jax.tree.map(jnp.add, totals, corrected)
    # (new - old) is what really was added; what it exceeds the term by is subtracted from the next
    # one
    return new_totals, jax.tree.map(
        lambda new, old, term: (new - old) - term, new_totals, totals, corrected
    )


def add_weighted(
    sums: tuple[Float[Array, "*shape"], Float[Array, "*shape"]],
    values: Float[Array, "rows *shape"],
    weights: Float[Array, "rows"],
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Adds the weighted sum of some rows to a compensated sum."""
    totals, compensation = sums
    # one client at a time and a large upload: a single pass over memory for product and sums
    if (
        len(values) == 1
        and values.dtype == totals.dtype
        and values.size >= LONG
        and choose(totals, compensation, values)
    ):
        new_totals, new_compensation = accumulate_p.bind(
            *aligned(totals, compensation, values[0], weights.astype(totals.dtype)), native=True
        )
        return new_totals, new_compensation
    factors = weights.astype(totals.dtype).reshape(weights.shape + (1,) * (values.ndim - 1))
    return add_compensated(sums, (factors * values.astype(totals.dtype)).sum(0))


def finalize(sums: tuple[Tree, Tree]) -> Tree:
    """Returns the value of a compensated sum."""
    return jax.tree.map(jnp.subtract, *sums)


def weighted_mean(sums: tuple[Any, ...], form: Any) -> Any:
    r"""Returns the weighted mean of the uploads of a phase, $\sum_k a_k u_k / \sum_k a_k$.

    Args:
        sums: the weighted sum of the uploads and the sum of the weights, in a wide type. Where the
            algorithm gave the uploads its own weights, the same two with the cohort's weights
            follow.
        form: shapes and types of one upload, which the mean takes.
    """
    total, weight, *default = sums
    if default:  # an algorithm's own weights may all be zero; then the cohort's count
        total = jax.tree.map(lambda x, y: jnp.where(weight > 0, x, y), total, default[0])
        weight = jnp.where(weight > 0, weight, default[1])
    return jax.tree.map(
        lambda x, like: (x / weight.astype(x.dtype)).astype(like.dtype), total, form
    )


def all_finite(values: Float[Array, "..."]) -> Bool[Array, ""]:
    """Returns whether all elements are finite."""
    if values.size >= LONG and choose(values):
        return finite_p.bind(values, members=1, native=True)[0][0] != 0
    return jnp.isfinite(values).all()


def _accumulated_shapes(
    totals: Any, compensation: Any, values: Any, weights: Any, **_: Any
) -> list[Result]:
    return [Result(totals.shape, totals.dtype, False)] * 2


def _accumulate(totals: Any, compensation: Any, values: Any, weights: Any) -> Any:
    factors = jnp.repeat(
        weights, values.size // len(weights), total_repeat_length=values.size
    ).reshape(totals.shape)
    return add_compensated((totals, compensation), factors * values)


def _flag_shapes(values: Any, *, members: int, **_: Any) -> list[Result]:
    return [Result((members,), jnp.int32, False)]


def _compute_flags(values: Any, *, members: int) -> list[Any]:
    return [jnp.isfinite(values.reshape(members, -1)).all(1).astype(jnp.int32)]


# arrays have any shape, so that no copy stands between them and the loop over clients: those of a
# batch follow each other
accumulate_p = primitive(
    "fedax_accumulate",
    _accumulated_shapes,
    _accumulate,
    ("fedax_accumulate", lambda *_, **__: [0]),
    (False,) * 4,
    in_place=2,
)
finite_p = primitive(
    "fedax_finite", _flag_shapes, _compute_flags, ("fedax_finite", lambda *_, **__: [0]), (False,)
)


def _accumulate_batch(operands: Any, dims: Any, *, native: bool) -> tuple[Any, Any]:
    *arrays, weights = _move_batch_axes(operands, dims)
    return accumulate_p.bind(*arrays, weights.reshape(-1), native=native), (0, 0)


def _compute_flags_batch(
    operands: Any, dims: Any, *, members: int, native: bool
) -> tuple[Any, Any]:
    (values,) = _move_batch_axes(operands, dims)
    (flags,) = finite_p.bind(values, members=members * len(values), native=native)
    return [flags.reshape(-1, members)], (0,)


def _move_batch_axes(operands: Any, dims: Any) -> list[Any]:
    size = batch_size(operands, dims)
    return [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(operands, dims)
    ]


batching.primitive_batchers[accumulate_p] = _accumulate_batch
batching.primitive_batchers[finite_p] = _compute_flags_batch
