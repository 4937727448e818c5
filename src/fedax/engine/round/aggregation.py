"""Aggregation of uploads: the weighted mean and compensated sums."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.utils.layout import accumulator


def no_terms(form: PyTree) -> PyTree:
    """Returns the compensated sum of no terms of these shapes and types, in a wide type.

    A leaf is one complex array: the total, and as its imaginary part the compensation, which is
    what rounding has added to the total so far. XLA adds a term to both in one pass over memory;
    for two arrays it makes four passes, a tenth of a round of a two-layer network.
    """

    def zero(leaf: Any) -> Array:
        real = jnp.zeros(leaf.shape, accumulator(leaf.dtype))
        return jax.lax.complex(real, real)

    return jax.tree.map(zero, form)


def add_compensated(sums: PyTree, terms: PyTree) -> PyTree:
    """Adds terms to a compensated sum, whose error does not grow with the number of terms.

    Source: Kahan, Further remarks on reducing truncation errors, Communications of the ACM 8(1),
    1965.
    """

    def add(pair: Array, term: Array) -> Array:
        corrected = term.astype(pair.real.dtype) - pair.imag
        total = pair.real + corrected
        # (new - old) is what really was added; what it exceeds the term by is subtracted from the
        # next one
        return jax.lax.complex(total, (total - pair.real) - corrected)

    return jax.tree.map(add, sums, terms)


def finalize(sums: PyTree) -> PyTree:
    """Returns the value of a compensated sum."""
    return jax.tree.map(lambda pair: pair.real - pair.imag, sums)


def weighted_sum(values: PyTree, weights: Float[Array, "rows"]) -> PyTree:
    """Returns the weighted sum of some rows, leaves of shape (rows, ...), in a wide type."""

    def sum_rows(rows: Array) -> Array:
        wide = accumulator(rows.dtype)
        factors = weights.astype(wide).reshape(weights.shape + (1,) * (rows.ndim - 1))
        return (factors * rows.astype(wide)).sum(0)

    return jax.tree.map(sum_rows, values)


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
