"""Host callbacks of compiled programs, for arrays of any size."""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array

Held = TypeVar("Held")


def call_host(
    function: Callable[..., Sequence[np.ndarray]],
    shapes: Sequence[jax.ShapeDtypeStruct],
    *operands: Any,
) -> list[Array]:
    """Calls a pure function on the host.

    It may be called again or not at all, on one device of a mesh or on all.

    Args:
        function: of NumPy arrays.
        shapes: shapes and types of the results.
        operands: its arguments.
    """
    arrays = [jnp.asarray(operand) for operand in operands]
    if jax.default_backend() != "cpu":
        return jax.pure_callback(function, list(shapes), *arrays, vmap_method="sequential")

    # `jax.pure_callback` copies its arguments to a device for the function on the host. The CPU
    # client copies arrays above 100 KiB in its own threads. While one device waits in a callback
    # and another waits for that device, no thread may be left, and both hang (jaxlib 0.10.2).
    def fill(context: Any, results: Sequence[Any], *arguments: Any) -> None:
        values = function(*map(np.asarray, arguments))
        for result, value in zip(results, values, strict=True):
            np.asarray(result)[...] = value

    return buffer_callback(fill, list(shapes), vmap_method="sequential")(*arrays)


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
