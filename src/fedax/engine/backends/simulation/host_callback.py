"""Host callbacks of compiled programs, for arrays of any size.

`jax.pure_callback` copies its arguments to a device for the function on the host. The CPU client
copies arrays above 100 KiB in its own threads. While one device waits in a callback and another
waits for that device, no thread may be left, and both hang (jaxlib 0.10.2). Here the function gets
the program's arrays without a copy.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedax.utils.jax_internals import Primitive, batching, mlir

Shapes = tuple[jax.ShapeDtypeStruct, ...]


def call_host(
    function: Callable[..., Sequence[np.ndarray]],
    shapes: Sequence[jax.ShapeDtypeStruct],
    *operands: Any,
) -> list[Array]:
    """Calls a pure function on the host.

    It may be called again or not at all, on one device of a mesh or on all.

    Args:
        function: a hashable function of NumPy arrays. Below `vmap`, arguments and results have one
            more leading axis, of length 1 for arguments that are the same in all lanes (see
            `map_lanes`).
        shapes: shapes and types of the results.
        operands: its arguments.
    """
    return call_host_p.bind(*map(jnp.asarray, operands), function=function, shapes=tuple(shapes))


call_host_p = Primitive("fedax_call_host")
call_host_p.multiple_results = True


@call_host_p.def_impl
def _run_eagerly(*operands: Any, function: Callable[..., Any], shapes: Shapes) -> list[Array]:
    return list(map(jnp.asarray, function(*map(np.asarray, operands))))


@call_host_p.def_abstract_eval
def _infer_shapes(*operands: Any, function: Callable[..., Any], shapes: Shapes) -> list[Any]:
    return [jax.core.ShapedArray(form.shape, form.dtype) for form in shapes]


def _batch(
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    function: Callable[..., Any],
    shapes: Shapes,
) -> Any:
    (lanes,) = {
        array.shape[axis] for array, axis in zip(operands, axes, strict=True) if axis is not None
    }
    batched = [
        array[None] if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(operands, axes, strict=True)
    ]
    wide = tuple(jax.ShapeDtypeStruct((lanes, *form.shape), form.dtype) for form in shapes)
    return call_host_p.bind(*batched, function=function, shapes=wide), (0,) * len(shapes)


def _lower(context: Any, *operands: Any, function: Callable[..., Any], shapes: Shapes) -> Any:
    avals = context.avals_in, context.avals_out
    # without side effects, so that XLA may drop a call whose result is not used
    answers, _, _ = mlir.emit_python_callback(
        context, function, None, list(operands), *avals, has_side_effect=False, returns_token=False
    )
    return answers


batching.primitive_batchers[call_host_p] = _batch
mlir.register_lowering(call_host_p, _lower, cacheable=False)


Held = TypeVar("Held")


class HandleRegistry(weakref.WeakValueDictionary[int, Held]):
    """Handle registry: objects by number, for as long as something else references them."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    def add(self, item: Held) -> int:
        """Registers an object and returns its handle."""
        number = next(self._numbers)
        self[number] = item
        return number


def map_lanes(function: Callable[..., Any], *arguments: tuple[Any, int]) -> Any:
    """Calls a function below `vmap` lane by lane.

    Arrays that are the same in all lanes have a leading axis of length 1.

    >>> map_lanes(lambda a, b: a + b.sum(), (np.array([1, 2]), 0), (np.array([[3, 4]]), 1)).tolist()
    [8, 9]

    Args:
        function: of arrays of one lane.
        arguments: arrays, each with its number of axes in one lane.
    """
    arrays = [(np.asarray(array), np.ndim(array) - axes) for array, axes in arguments]
    lanes = np.broadcast_shapes(*(array.shape[:leading] for array, leading in arrays))
    if not lanes:
        return function(*(array for array, _ in arrays))
    full_arrays = [
        np.broadcast_to(array, (*lanes, *array.shape[leading:])) for array, leading in arrays
    ]
    results = [function(*(array[lane] for array in full_arrays)) for lane in np.ndindex(lanes)]
    return jax.tree.map(
        lambda *leaves: np.stack(leaves).reshape(*lanes, *np.shape(leaves[0])), *results
    )
