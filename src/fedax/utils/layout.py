"""The layout of a model's parameters in one flat vector."""

import functools
import itertools
import math
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from fedax.utils.leaf_names import Which, chosen, names_of

Vector: TypeAlias = Float[Array, "dim"]
"""A model, a gradient or a direction: all parameters in one flat vector."""


def accumulator(dtype: Any) -> Any:
    """Returns the float type in which sums over clients are formed: at least 32 bits.

    >>> accumulator("bfloat16"), accumulator("float64")
    (dtype('float32'), dtype('float64'))
    """
    dtype = jnp.dtype(dtype)
    return dtype if dtype.itemsize >= 4 else jnp.dtype(jnp.float32)


def share_of(sizes: Array, total: int, dtype: Any) -> Array:
    """Computes shares of all examples, n_k / n.

    Half precision has no room for n, so the quotient is formed in more.
    """
    wide = accumulator(dtype)
    return (jnp.asarray(sizes).astype(wide) / jnp.asarray(total, wide)).astype(dtype)


class Layout(eqx.Module):
    """Ravels a pytree of equal real dtypes into `Float[Array, "dim"]` and back.

    Static and hashable, so two runs of the same model share one compiled program. Made by
    `Layout.of`.

    Attributes:
        treedef: the structure of the pytree.
        shapes: of its leaves, in order.
        dtype: of all of them.
    """

    treedef: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    dtype: str = eqx.field(static=True)

    @classmethod
    def of(cls, params: PyTree) -> "Layout":
        """Returns the layout of parameters, real arrays of one dtype."""
        leaves, treedef = jax.tree.flatten(params)
        return cls(treedef, tuple(map(jnp.shape, leaves)), str(jnp.result_type(*leaves)))

    @property
    def blocks(self) -> tuple[int, ...]:
        """Returns the number of entries of each leaf, in flat order."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def dim(self) -> int:
        return sum(self.blocks)

    def ravel(self, params: PyTree) -> Float[Array, "dim"]:
        """Concatenates all parameters into one vector."""
        return _ravel(self, jax.tree.leaves(params))

    def unravel(self, vector: Float[Array, "dim"]) -> PyTree:
        """Returns the model's own pytree."""
        return jax.tree.unflatten(self.treedef, _split_vector(self, vector))

    @property
    def form(self) -> PyTree:
        """Returns the model with shapes instead of arrays."""
        return jax.tree.unflatten(
            self.treedef, [jax.ShapeDtypeStruct(shape, self.dtype) for shape in self.shapes]
        )

    @property
    def names(self) -> list[str]:
        """Returns the names of all leaves in flat order; a lone array has none."""
        return names_of(self.form)

    def part(self, which: Which, field: str) -> "Part":
        """Selects leaves, see `fedax.utils.leaf_names.chosen`; `field` is for messages."""
        return Part(self, tuple(chosen(self.form, which, field)))


# outside of a program each of these is one instead of one a leaf; inside, they are part of it
@functools.partial(jax.jit, static_argnums=0, inline=True)
def _ravel(layout: Layout, leaves: list[Any]) -> Array:
    flat = [jnp.ravel(jnp.asarray(leaf, layout.dtype)) for leaf in leaves]
    if len(flat) == 1:
        return flat[0]
    # XLA fuses `concatenate` on the CPU with what reads it, number by number; blocks that are
    # written one after the other are not fused. The barrier keeps the first block from becoming a
    # padding, a masked loop over the whole vector: 15 ns a number in rounds on a Zen 5.
    vector = lax.optimization_barrier(jnp.zeros(layout.dim, layout.dtype))
    begin = 0
    for leaf in flat:
        vector = lax.dynamic_update_slice(vector, leaf, (begin,))
        begin += leaf.size
    return vector


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _split_vector(layout: Layout, vector: Array) -> list[Array]:
    ends = np.cumsum(layout.blocks)
    return [
        vector[end - size : end].reshape(shape)
        for end, size, shape in zip(ends, layout.blocks, layout.shapes, strict=True)
    ]


class Part(eqx.Module):
    """Some leaves of a model, as a flat vector.

    Static and hashable, as the layout is.

    Attributes:
        whole: of the model.
        chosen: for each leaf, in flat order, whether it belongs to the part.

    >>> whole = Layout.of({"bias": np.zeros(1), "kernel": np.ones(3)})
    >>> head = whole.part("kernel", "head")
    >>> head.take(jnp.arange(4.0)).tolist(), head.put(jnp.zeros(4), jnp.ones(3)).tolist()
    ([1.0, 2.0, 3.0], [0.0, 1.0, 1.0, 1.0])
    """

    whole: Layout = eqx.field(static=True)
    chosen: tuple[bool, ...] = eqx.field(static=True)

    @property
    def others(self) -> "Part":
        """Returns the part with all other leaves."""
        return Part(self.whole, tuple(not is_chosen for is_chosen in self.chosen))

    @property
    def layout(self) -> Layout:
        """Returns the layout of the part; the other leaves are None in the pytree."""
        ids = [i if is_chosen else None for i, is_chosen in enumerate(self.chosen)]
        treedef = jax.tree.structure(jax.tree.unflatten(self.whole.treedef, ids))
        return Layout(
            treedef,
            tuple(itertools.compress(self.whole.shapes, self.chosen)),
            self.whole.dtype,
        )

    def take(self, w: Float[Array, "dim"]) -> Float[Array, "part"]:
        """Extracts the part from a model."""
        leaves = itertools.compress(_split_vector(self.whole, w), self.chosen)
        return _ravel(self.layout, [*leaves])

    def put(self, w: Float[Array, "dim"], part: Float[Array, "part"]) -> Float[Array, "dim"]:
        """Returns the model with another part."""
        new_leaves = iter(_split_vector(self.layout, part))
        leaves = zip(self.chosen, _split_vector(self.whole, w), strict=True)
        return _ravel(
            self.whole, [next(new_leaves) if is_chosen else leaf for is_chosen, leaf in leaves]
        )
