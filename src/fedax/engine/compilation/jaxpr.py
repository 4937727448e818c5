"""Functions that were staged to jaxprs, and walking through their equations."""

import dataclasses
from typing import Any

import jax
import jax.core
from jaxtyping import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Staged:
    """A function of pytrees, staged to a jaxpr. Calling it evaluates the jaxpr.

    Attributes:
        jaxpr: the program.
        consts: arrays that the function captured, the values of `jaxpr.constvars`.
        out_shapes: pytree of the results' shapes and types.
    """

    jaxpr: Any
    consts: list[Any]
    out_shapes: PyTree

    def __call__(self, *arguments: Any) -> Any:
        # evaluated inside another trace, the equations become part of that program
        results = jax.core.eval_jaxpr(self.jaxpr, self.consts, *jax.tree.leaves(arguments))
        # a result that is the same for all arguments comes as a number of Python
        arrays = map(jax.numpy.asarray, results)
        return jax.tree.unflatten(jax.tree.structure(self.out_shapes), arrays)


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
