"""Functions that are traced once, for the shapes of their results and for every place where they are called."""

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
