"""Interface of classification models: immutable, hashable, with `init` and `__call__`."""

import math
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, Key, PyTree


@runtime_checkable
class Model(Protocol):
    """Equal models must compare equal and hash alike: compiled programs are shared between them."""

    def init(self, key: Key[Array, ""]) -> PyTree:
        """Draws parameters: a pytree of arrays of JAX's default float type."""
        ...

    def __call__(self, params: PyTree, x: Any, key: Any = None) -> Float[Array, "batch classes"]:
        """Returns the logits of a batch. The key is for dropout; it is None in evaluation."""
        ...


def parameter_count(model: Model) -> int:
    """Returns the number of a model's parameters, without drawing them.

    >>> from fedax.models import Softmax
    >>> parameter_count(Softmax(60, 10))
    610
    """
    return sum(
        math.prod(leaf.shape)
        for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    )
