"""Aggregation of uploads: the weighted mean and compensated sums."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.utils.layout import accumulator

Tree = TypeVar("Tree")


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


def weighted_sum(values: PyTree, weights: Float[Array, "rows"]) -> PyTree:
    """Returns the weighted sum of some rows, leaves of shape (rows, ...), in a wide type."""

    def sum_rows(rows: Array) -> Array:
        wide = accumulator(rows.dtype)
        factors = weights.astype(wide).reshape(weights.shape + (1,) * (rows.ndim - 1))
        return (factors * rows.astype(wide)).sum(0)

    return jax.tree.map(sum_rows, values)


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
