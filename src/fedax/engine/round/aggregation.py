"""Compensated sums, whose error does not grow with the number of terms, and whether numbers are finite."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.interpreters import batching
from jaxtyping import Array, Bool, Float

from fedax.ops.primitives import Result, aligned, batch_size, choose, primitive

Tree = TypeVar("Tree")

LONG = 1 << 12
"""From so many numbers on, a native call is sooner than the passes that XLA makes of these operations."""


def add_compensated(sums: tuple[Tree, Tree], terms: Tree) -> tuple[Tree, Tree]:
    """Adds terms to a pair of totals and what rounding added to them, both zero at first.

    Source: Kahan, Further remarks on reducing truncation errors, Communications of the ACM 8(1), 1965.
    """
    totals, lost = sums
    missing = jax.tree.map(jnp.subtract, terms, lost)
    after = jax.tree.map(jnp.add, totals, missing)
    return after, jax.tree.map(lambda new, old, term: (new - old) - term, after, totals, missing)


def add_weighted(
    sums: tuple[Float[Array, "*shape"], Float[Array, "*shape"]],
    values: Float[Array, "rows *shape"],
    weights: Float[Array, "rows"],
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """As `add_compensated`, with the weighted sum of some rows as the term."""
    totals, lost = sums
    if len(values) == 1 and values.dtype == totals.dtype and values.size >= LONG and choose(totals, lost, values):
        after, left = accumulate_p.bind(*aligned(totals, lost, values[0], weights.astype(totals.dtype)), native=True)
        return after, left
    factors = weights.astype(totals.dtype).reshape(weights.shape + (1,) * (values.ndim - 1))
    return add_compensated(sums, (factors * values.astype(totals.dtype)).sum(0))


def finalize(sums: tuple[Tree, Tree]) -> Tree:
    """The sum by such a pair."""
    return jax.tree.map(jnp.subtract, *sums)


def all_finite(values: Float[Array, "..."]) -> Bool[Array, ""]:
    """Whether all numbers of an array are."""
    if values.size >= LONG and choose(values):
        return finite_p.bind(values, members=1, native=True)[0][0] != 0
    return jnp.isfinite(values).all()


def _accumulated(totals: Any, lost: Any, values: Any, weights: Any, **_: Any) -> list[Result]:
    return [Result(totals.shape, totals.dtype, False)] * 2


def _accumulate(totals: Any, lost: Any, values: Any, weights: Any) -> Any:
    each = jnp.repeat(weights, values.size // len(weights), total_repeat_length=values.size).reshape(totals.shape)
    return add_compensated((totals, lost), each * values)


def _flags(values: Any, *, members: int, **_: Any) -> list[Result]:
    return [Result((members,), jnp.int32, False)]


def _finite(values: Any, *, members: int) -> list[Any]:
    return [jnp.isfinite(values.reshape(members, -1)).all(1).astype(jnp.int32)]


# arrays have any shape, so that no copy stands between them and the loop over clients: those of a batch follow each other
accumulate_p = primitive(
    "fedax_accumulate", _accumulated, _accumulate, ("fedax_accumulate", lambda *_, **__: [0]), (False,) * 4, in_place=2
)
finite_p = primitive("fedax_finite", _flags, _finite, ("fedax_finite", lambda *_, **__: [0]), (False,))


def _accumulate_batch(operands: Any, dims: Any, *, native: bool) -> tuple[Any, Any]:
    *arrays, weights = _in_front(operands, dims)
    return accumulate_p.bind(*arrays, weights.reshape(-1), native=native), (0, 0)


def _finite_batch(operands: Any, dims: Any, *, members: int, native: bool) -> tuple[Any, Any]:
    (values,) = _in_front(operands, dims)
    (flags,) = finite_p.bind(values, members=members * len(values), native=native)
    return [flags.reshape(-1, members)], (0,)


def _in_front(operands: Any, dims: Any) -> list[Any]:
    size = batch_size(operands, dims)
    return [jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims)]


batching.primitive_batchers[accumulate_p] = _accumulate_batch
batching.primitive_batchers[finite_p] = _finite_batch
