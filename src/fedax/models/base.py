"""What a classification model is to fedax: an immutable, hashable description with `init` and `__call__`."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, Key, PyTree


@runtime_checkable
class Model(Protocol):
    """Equal models must compare equal and hash alike: compiled programs are shared between them."""

    def init(self, key: Key[Array, ""]) -> PyTree:
        """Fresh parameters: a pytree of arrays of JAX's default float type."""
        ...

    def __call__(self, params: PyTree, x: Any, key: Any = None) -> Float[Array, "batch classes"]:
        """The logits of a batch. The key is for dropout and the like, and None in evaluation."""
        ...
