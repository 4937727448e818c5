"""The next character from the last one alone: a baseline for text, and a small model for tests."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedax.core import InvalidInput
from fedax.utils.numbers import are_counts, convert_fields


@dataclass(frozen=True)
class Bigram:
    r"""Bigram model: logits depend on the last character of a window only. Convex.

    They are row $x_{\text{last}}$ of a table that starts at zero.

    Args:
        vocabulary: characters; at least 2.

    Raises:
        InvalidInput: a size out of range.

    >>> import jax
    >>> model = Bigram(80)
    >>> params, _ = model.init(jax.random.key(0))
    >>> model.apply(params, None, jnp.ones((3, 5), int), None)[0].shape
    (3, 80)
    """

    vocabulary: int

    def __post_init__(self) -> None:
        convert_fields(self)
        if not are_counts(self.vocabulary, least=2):
            raise InvalidInput.of("Bigram(vocabulary)", self.vocabulary, "whole numbers >= 2")

    def init(self, key: Key[Array, ""]) -> tuple[Float[Array, "vocabulary vocabulary"], None]:
        """Returns a table of zeros: all characters are equally likely."""
        return jnp.zeros((self.vocabulary, self.vocabulary)), None

    def apply(
        self,
        params: Float[Array, "vocabulary vocabulary"],
        state: None,
        x: Int[Array, "batch length"],
        key: Any,
    ) -> tuple[Float[Array, "batch vocabulary"], None]:
        """Returns the logits of a batch, and no state."""
        return params[x[:, -1]], None
