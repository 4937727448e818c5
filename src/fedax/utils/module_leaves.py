"""Leaves of Equinox modules, which hold settings and functions beside arrays."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree


def is_in_module(tree: PyTree) -> list[bool]:
    """Returns for each leaf, in flat order, whether it lies within an Equinox module.

    >>> is_in_module({"dropout": eqx.nn.Dropout(0.5), "scale": 1.0})
    [True, True, False]
    """
    marks = list[bool]()
    for node in jax.tree.leaves(tree, is_leaf=_is_module):
        marks += [True] * len(jax.tree.leaves(node)) if _is_module(node) else [False]
    return marks


def _is_module(node: Any) -> bool:
    return isinstance(node, eqx.Module)
