"""Traced programs, equation by equation."""

from typing import Any

import jax


def inner(equation: Any) -> list[Any]:
    """The programs within an equation: of a loop, a branch, a call."""
    found = jax.tree.leaves(equation.params, is_leaf=_is_program)
    return [getattr(node, "jaxpr", node) for node in found if _is_program(node)]


def turns(equation: Any) -> int | None:
    """The number of times that the programs within an equation run; None for a loop of unknown length."""
    if equation.primitive.name == "while":
        return None
    return equation.params["length"] if equation.primitive.name == "scan" else 1


def _is_program(node: Any) -> bool:
    return hasattr(node, "eqns") or hasattr(node, "jaxpr")
