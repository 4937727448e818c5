"""Walking through the equations of jaxprs."""

from typing import Any

import jax


def subjaxprs(equation: Any) -> list[Any]:
    """Returns the jaxprs within an equation: loop bodies, branches, callees."""
    nodes = jax.tree.leaves(equation.params, is_leaf=_is_jaxpr)
    # ClosedJaxpr has it as `jaxpr`
    return [getattr(node, "jaxpr", node) for node in nodes if _is_jaxpr(node)]


def trip_count(equation: Any) -> int | None:
    """Returns how many times the jaxprs within an equation run.

    Returns None for a `while` loop, whose length is unknown.
    """
    if equation.primitive.name == "while":
        return None
    return equation.params["length"] if equation.primitive.name == "scan" else 1


def _is_jaxpr(node: Any) -> bool:
    return hasattr(node, "eqns")
