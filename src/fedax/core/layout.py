"""How a model's parameters lie in one flat vector."""

import math
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fedax.core.errors import InvalidInput

Vector: TypeAlias = Float[Array, "dim"]
"""A model, a gradient or a direction: all parameters in one flat vector."""


class Layout(eqx.Module):
    """Ravels a pytree of equal real dtypes into `Float[Array, "dim"]` and back.

    Static and hashable, so two runs of the same model share one compiled program.
    """

    treedef: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    dtype: str = eqx.field(static=True)

    @classmethod
    def of(cls, params: PyTree) -> "Layout":
        """The layout of example parameters; refuses leaves that are not real arrays of one dtype."""
        leaves, treedef = jax.tree.flatten(params)
        if not leaves:
            raise InvalidInput.of("params", params, "a pytree with at least one real array")
        dtypes = {str(jnp.result_type(leaf)) for leaf in leaves}
        if len(dtypes) > 1 or not jnp.issubdtype(dtypes.copy().pop(), jnp.floating):
            raise InvalidInput.of("params", sorted(dtypes), "real arrays, all of the same dtype")
        return cls(treedef, tuple(tuple(np.shape(leaf)) for leaf in leaves), dtypes.pop())

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of entries of each leaf, in flat order."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def dim(self) -> int:
        return sum(self.blocks)

    def ravel(self, params: PyTree) -> Float[Array, "dim"]:
        """All parameters in one vector."""
        leaves = [jnp.ravel(jnp.asarray(leaf, self.dtype)) for leaf in jax.tree.leaves(params)]
        return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)

    def unravel(self, vector: Float[Array, "dim"]) -> PyTree:
        """The model's own pytree."""
        ends = np.cumsum(self.blocks)
        parts = [
            vector[end - size : end].reshape(shape) for end, size, shape in zip(ends, self.blocks, self.shapes, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, parts)
