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

from fedax.errors import InvalidInput
from fedax.utils.leaf_names import WORDS, Which, chosen, names_of, select_by_word

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
        """Returns the layout of parameters; refuses leaves that are not real arrays.

        All leaves have one dtype.
        """
        leaves, treedef = jax.tree.flatten(params)
        if not leaves:
            raise InvalidInput.of("params", params, "a pytree with at least one real array")
        dtypes = {str(jnp.result_type(leaf)) for leaf in leaves}
        if len(dtypes) > 1 or not jnp.issubdtype(dtypes.copy().pop(), jnp.floating):
            raise InvalidInput.of("params", sorted(dtypes), "real arrays, all of the same dtype")
        return cls(treedef, tuple(tuple(np.shape(leaf)) for leaf in leaves), dtypes.pop())

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
        """Selects leaves by name, by a predicate or by a word of `fedax.utils.leaf_names.WORDS`.

        Raises:
            InvalidInput: a name that no leaf has, a word that does not fit; `field` is for the
                message.
        """
        model = self.form
        if isinstance(which, str) and which in WORDS:
            selected = select_by_word(model, which, field)
        else:
            selected = chosen(model, which, field)
        return Part(self, tuple(selected))


# outside of a program each of these is one instead of one a leaf; inside, they are part of it
@functools.partial(jax.jit, static_argnums=0, inline=True)
def _ravel(layout: Layout, leaves: list[Any]) -> Array:
    flat = [jnp.ravel(jnp.asarray(leaf, layout.dtype)) for leaf in leaves]
    if len(flat) == 1:
        return flat[0]
    # XLA fuses `concatenate` on the CPU with what reads it, number by number; blocks that are
    # written one after the other are not fused. The barrier keeps the first block from becoming a
    # padding, a masked loop over the whole vector: 15 ns a number in rounds on a Zen 5.
    vector, begin = lax.optimization_barrier(jnp.zeros(layout.dim, layout.dtype)), 0
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
            tuple(s for s, is_chosen in zip(self.whole.shapes, self.chosen) if is_chosen),
            self.whole.dtype,
        )

    @property
    def _slices(self) -> list[tuple[slice, slice]]:
        """Returns slices of the model's vector, merged where adjacent, and of the part's."""
        slices = list[tuple[slice, slice]]()
        begin = 0
        filled = 0
        leaves = zip(self.chosen, self.whole.blocks, strict=True)
        for is_chosen, adjacent in itertools.groupby(leaves, key=lambda leaf: leaf[0]):
            size = sum(block for _, block in adjacent)
            if is_chosen:
                slices.append((slice(begin, begin + size), slice(filled, filled + size)))
                filled += size
            begin += size
        return slices

    def take(self, w: Float[Array, "dim"]) -> Float[Array, "part"]:
        """Extracts the part from a model."""
        pieces = [w[model_slice] for model_slice, _ in self._slices]
        return pieces[0] if len(pieces) == 1 else jnp.concatenate([w[:0], *pieces])

    def put(self, w: Float[Array, "dim"], part: Float[Array, "part"]) -> Float[Array, "dim"]:
        """Returns the model with another part."""
        for model_slice, part_slice in self._slices:
            w = w.at[model_slice].set(part[part_slice])
        return w
