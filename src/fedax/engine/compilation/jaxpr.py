"""Traced programs, equation by equation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.core
from jaxtyping import PyTree


class Traced(NamedTuple):
    """A traced function of arrays.

    Attributes:
        shapes: the shapes and types of its results.
    """

    program: Any
    captured: list[Any]
    shapes: PyTree

    def __call__(self, *arguments: Any) -> Any:
        results = jax.core.eval_jaxpr(self.program, self.captured, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(self.shapes), results)


def traced(function: Callable[..., Any], *arguments: Any) -> Traced:
    """A function of pytrees of arrays, traced for arguments of the shapes and types of these."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return Traced(closed.jaxpr, closed.consts, shapes)


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
