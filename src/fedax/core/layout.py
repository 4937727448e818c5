"""The layout of a model's parameters in one flat vector."""

import math
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from fedax.core.errors import InvalidInput

Vector: TypeAlias = Float[Array, "dim"]
"""A model, a gradient or a direction: all parameters in one flat vector."""


def accumulator(dtype: Any) -> Any:
    """The float type in which sums over clients are formed: at least 32 bits.

    >>> accumulator("bfloat16"), accumulator("float64")
    (dtype('float32'), dtype('float64'))
    """
    dtype = jnp.dtype(dtype)
    return dtype if dtype.itemsize >= 4 else jnp.dtype(jnp.float32)


def share_of(sizes: Array, total: int, dtype: Any) -> Array:
    """Shares of all examples, n_k / n. Half precision has no room for n, so the quotient is formed in more."""
    wide = accumulator(dtype)
    return (jnp.asarray(sizes).astype(wide) / jnp.asarray(total, wide)).astype(dtype)


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
        if len(leaves) == 1:
            return leaves[0]
        # on the CPU `concatenate` is fused with what reads it, number by number; writing blocks one after the other is not
        vector, begin = jnp.zeros(self.dim, self.dtype), 0
        for leaf in leaves:
            vector = lax.dynamic_update_slice(vector, leaf, (begin,))
            begin += leaf.size
        return vector

    def unravel(self, vector: Float[Array, "dim"]) -> PyTree:
        """The model's own pytree."""
        ends = np.cumsum(self.blocks)
        parts = [
            vector[end - size : end].reshape(shape) for end, size, shape in zip(ends, self.blocks, self.shapes, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, parts)
