"""Compensated sums, whose error does not grow with the number of terms."""

from typing import TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def plus(sums: tuple[Tree, Tree], terms: Tree) -> tuple[Tree, Tree]:
    """Adds terms to a pair of totals and what rounding added to them, both zero at first.

    Source: Kahan, Further remarks on reducing truncation errors, Communications of the ACM 8(1), 1965.
    """
    totals, lost = sums
    missing = jax.tree.map(jnp.subtract, terms, lost)
    after = jax.tree.map(jnp.add, totals, missing)
    return after, jax.tree.map(lambda new, old, term: (new - old) - term, after, totals, missing)


def total(sums: tuple[Tree, Tree]) -> Tree:
    """The sum by such a pair."""
    return jax.tree.map(jnp.subtract, *sums)
