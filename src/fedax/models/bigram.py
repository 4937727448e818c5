"""The next character from the last one alone: a baseline for text, and a small model for tests."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedax.models.base import Logits, Sized


@dataclass(frozen=True)
class Bigram(Sized):
    r"""Bigram model: logits depend on the last character of a window only. Convex.

    They are row $x_{\text{last}}$ of a table that starts at zero.

    Args:
        vocabulary: characters; at least 1.

    Raises:
        InvalidInput: a size out of range.

    >>> import jax
    >>> model = Bigram(80)
    >>> params, _ = model.init(jax.random.key(0))
    >>> model.apply(params, None, jnp.ones((3, 5), int), None)[0].shape
    (3, 80)
    """

    vocabulary: int

    def init(self, key: Key[Array, ""]) -> tuple[Float[Array, "vocabulary vocabulary"], None]:
        """Returns a table of zeros: all characters are equally likely."""
        return jnp.zeros((self.vocabulary, self.vocabulary)), None

    def apply(
        self,
        params: Float[Array, "vocabulary vocabulary"],
        state: None,
        x: Int[Array, "batch length"],
        key: Any,
    ) -> Logits:
        """Returns the logits of a batch, and no state."""
        return params[x[:, -1]], None
