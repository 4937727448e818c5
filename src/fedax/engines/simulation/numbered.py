"""Objects on the host that compiled programs ask by number: one program serves whatever the objects hold."""

import itertools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

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
