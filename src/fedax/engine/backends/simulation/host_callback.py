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
        function: a hashable function of NumPy arrays.
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


def _batch(operands: Sequence[Any], axes: Sequence[int | None], **parameters: Any) -> Any:
    # one call after the other
    lanes = [
        jnp.moveaxis(operand, axis, 0)
        for operand, axis in zip(operands, axes, strict=True)
        if axis is not None
    ]

    def call_lane(lane: list[Array]) -> list[Array]:
        rest = iter(lane)
        arguments = [
            operand if axis is None else next(rest)
            for operand, axis in zip(operands, axes, strict=True)
        ]
        return call_host_p.bind(*arguments, **parameters)

    results = jax.lax.map(call_lane, lanes)
    return results, (0,) * len(results)


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
