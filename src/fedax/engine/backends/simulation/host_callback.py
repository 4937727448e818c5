"""Questions that compiled programs ask the host, with arrays of any size.

`jax.pure_callback` copies its arguments to a device for the function on the host. The CPU client copies those above some 100 KiB in
threads of its own, and while one device asks and another waits for it none may be left: two devices stand still (jaxlib 0.10.2).
Here the function gets the program's arrays as they lie.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array

Forms = tuple[jax.ShapeDtypeStruct, ...]


def ask(question: Callable[..., Sequence[np.ndarray]], forms: Sequence[jax.ShapeDtypeStruct], *given: Any) -> list[Array]:
    """A pure function's answers on the host: it may be asked never or again, on one device of a mesh or on all.

    Args:
        question: of NumPy arrays, hashable; below `vmap` the arrays, and those that it returns, have an axis more in front, of
            size 1 where they are the same in all lanes (see `over_lanes`).
        forms: shapes and types of the answers.
        given: what it is asked with.
    """
    return _ask.bind(*map(jnp.asarray, given), question=question, forms=tuple(forms))


_ask = Primitive("ask_host")
_ask.multiple_results = True


@_ask.def_impl
def _at_once(*given: Any, question: Callable[..., Any], forms: Forms) -> list[Array]:
    return list(map(jnp.asarray, question(*map(np.asarray, given))))


@_ask.def_abstract_eval
def _shapes(*given: Any, question: Callable[..., Any], forms: Forms) -> list[Any]:
    return [jax.core.ShapedArray(form.shape, form.dtype) for form in forms]


def _in_lanes(given: Sequence[Any], axes: Sequence[int | None], *, question: Callable[..., Any], forms: Forms) -> Any:
    (lanes,) = {array.shape[axis] for array, axis in zip(given, axes, strict=True) if axis is not None}
    moved = [array[None] if axis is None else jnp.moveaxis(array, axis, 0) for array, axis in zip(given, axes, strict=True)]
    wide = tuple(jax.ShapeDtypeStruct((lanes, *form.shape), form.dtype) for form in forms)
    return _ask.bind(*moved, question=question, forms=wide), (0,) * len(forms)


def _lowered(context: Any, *given: Any, question: Callable[..., Any], forms: Forms) -> Any:
    shapes = context.avals_in, context.avals_out
    answers, _, _ = mlir.emit_python_callback(
        context, question, None, list(given), *shapes, has_side_effect=False, returns_token=False
    )
    return answers


batching.primitive_batchers[_ask] = _in_lanes
mlir.register_lowering(_ask, _lowered, cacheable=False)


Kept = TypeVar("Kept")


class Numbered(weakref.WeakValueDictionary[int, Kept]):
    """Objects by number, for as long as somebody else holds them."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    def add(self, one: Kept) -> int:
        """The number of a new object."""
        number = next(self._numbers)
        self[number] = one
        return number


def over_lanes(function: Callable[..., Any], *arguments: tuple[Any, int]) -> Any:
    """A function's answers below `vmap`, lane by lane; arrays that are the same in all lanes have one.

    >>> over_lanes(lambda a, b: a + b.sum(), (np.array([1, 2]), 0), (np.array([[3, 4]]), 1)).tolist()
    [8, 9]

    Args:
        function: of arrays of one lane.
        arguments: arrays, each with the number of axes that it has in one lane.
    """
    arrays = [np.asarray(array) for array, _ in arguments]
    own = [array.shape[array.ndim - axes :] for array, (_, axes) in zip(arrays, arguments, strict=True)]
    lanes = [array.shape[: array.ndim - len(shape)] for array, shape in zip(arrays, own, strict=True)]
    common = np.broadcast_shapes(*lanes)
    if not common:
        return function(*arrays)
    each = [np.broadcast_to(array, (*common, *shape)) for array, shape in zip(arrays, own, strict=True)]
    answers = [function(*(array[lane] for array in each)) for lane in np.ndindex(common)]
    return jax.tree.map(lambda *leaves: np.stack(leaves).reshape(*common, *np.shape(leaves[0])), *answers)
