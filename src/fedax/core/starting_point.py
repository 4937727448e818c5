"""Starting points of tasks: the leaves of a model that are trained, and those that stay."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Key, PyTree

from fedax.errors import InvalidInput
from fedax.examples.arrays import as_array, check_range
from fedax.utils.leaf_names import Which, chosen, is_in_module, names_of


class Given(eqx.Module):
    """A starting point that does not depend on the seed."""

    params: PyTree

    def __call__(self, key: Key[Array, ""]) -> PyTree:
        return jax.tree.map(jnp.asarray, self.params)


@dataclasses.dataclass(frozen=True)
class Made:
    """Starting point that a function makes from the seed's key.

    Attributes:
        function: of the key.
        is_frozen: for each leaf, in flat order, whether it is not trained.
        dtype: of all that are trained; None for their own.
        has_base: whether frozen leaves may be large; then they are not made again.
    """

    function: Callable[[Key[Array, ""]], PyTree]
    is_frozen: tuple[bool, ...]
    dtype: DTypeLike | None
    has_base: bool

    def __call__(self, key: Key[Array, ""]) -> PyTree:
        # XLA removes leaves that are not used
        make = jax.jit(self._select_trained) if self.has_base else self._select_trained
        return jax.tree.map(lambda leaf: _to_real(leaf, self.dtype), make(key))

    def _select_trained(self, key: Key[Array, ""]) -> PyTree:
        leaves, structure = jax.tree.flatten(self.function(key))
        pairs = zip(self.is_frozen, leaves, strict=True)
        return jax.tree.unflatten(structure, [None if kept else leaf for kept, leaf in pairs])


def starting_point(
    params: PyTree,
    frozen: Which | None = None,
    always: Callable[[str, ArrayLike], bool] | None = None,
) -> tuple[Given | Made, PyTree]:
    """Splits a model into the leaves that are trained and the others.

    Args:
        params: a pytree, or a function of a random key that makes one.
        frozen: leaves that are not trained.
        always: a predicate of further ones.

    Returns:
        A function of a random key that gives the trained leaves, and the pytree of all others, None
        if there are none.

    Raises:
        InvalidInput: leaves that cannot be trained.
    """
    leaves = jax.tree.leaves(params)
    # a plain function is a leaf by itself; a model that can be called has leaves of its own
    make = params if callable(params) and len(leaves) == 1 and leaves[0] is params else None
    example = params if make is None else make(jax.random.key(0))
    leaves, structure = jax.tree.flatten(example)
    is_frozen = chosen(example, frozen or (), "Task(frozen=...)")
    in_module = is_in_module(example)
    for i, name in enumerate(names_of(example)):
        field = f"Task(start=...), leaf {name!r}"
        if in_module[i]:
            # numbers within modules are settings, such as a rate of dropout
            is_array = isinstance(leaves[i], np.ndarray | jax.Array)
            is_frozen[i] |= not (is_array and jnp.issubdtype(leaves[i].dtype, jnp.floating))
        else:
            leaves[i] = native(leaves[i], field)
        is_frozen[i] |= not np.size(leaves[i]) or (always is not None and always(name, leaves[i]))
        if is_frozen[i]:
            continue
        with np.errstate(over="ignore"):
            array = _to_real(leaves[i])
        if not jnp.issubdtype(array.dtype, jnp.floating):
            hint = "Write .astype(float) if it is to be trained, or name it in frozen=..."
            raise InvalidInput.found(field, f"an array of type {array.dtype}", "real numbers", hint)
        if not jnp.isfinite(array).all():
            got = "NaN, infinity or numbers beyond the range"
            raise InvalidInput.found(field, got, f"finite numbers that {array.dtype} can hold")
    if all(is_frozen):
        allowed = "a pytree with at least one real array to train"
        raise InvalidInput.of("Task(start=...)", example, allowed)
    trained = [None if kept else leaf for kept, leaf in zip(is_frozen, leaves, strict=True)]
    # A large base must not be in memory twice: each array goes before the next one is copied.
    del example, params
    for i, kept in enumerate(is_frozen):
        leaf = leaves[i] if kept else None
        # on the device: each program would copy one of NumPy there
        leaves[i] = jnp.array(leaf) if isinstance(leaf, np.ndarray) else leaf
    untrained = jax.tree.unflatten(structure, leaves) if any(is_frozen) else None
    # algorithms see one flat vector, of the widest type
    dtypes = {_to_real(leaf).dtype for leaf in trained if leaf is not None}
    with jax.numpy_dtype_promotion("standard"):
        dtype = None if len(dtypes) == 1 else jnp.result_type(*dtypes)
    if make is not None:
        return Made(make, tuple(is_frozen), dtype, frozen is not None), untrained
    start = [None if leaf is None else _to_real(leaf, dtype) for leaf in trained]
    return Given(jax.tree.unflatten(structure, start)), untrained


def native(leaf: Any, where: str) -> Any:
    """Returns a number or an array that programs can hold; refuses anything else."""
    if isinstance(leaf, int | float | jax.Array) and not isinstance(leaf, bool | Tracer):
        return leaf
    if not (isinstance(leaf, bool) or hasattr(leaf, "__array__")):
        hint = "Close over settings in the loss, or give them with functools.partial."
        raise InvalidInput.found(where, f"a {type(leaf).__name__}", "numbers and arrays", hint)
    array = np.asarray(leaf) if isinstance(leaf, bool | np.generic) else as_array(leaf, where)
    if array.dtype.kind in "iu":
        check_range(array, jax.dtypes.canonicalize_dtype(array.dtype), where)
    return array.astype(np.float64) if array.dtype == np.longdouble else array


def _to_real(leaf: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    return jnp.asarray(leaf, float if dtype is None and not hasattr(leaf, "dtype") else dtype)
