"""Recurrent networks for text."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedax.models.base import Logits, Sized
from fedax.models.dense import Affine
from fedax.ops import LSTM


class CharLSTMParams(NamedTuple):
    """The characters' vectors, the layers from the input on, and the classifier."""

    embedding: Float[Array, "vocabulary vectors"]
    layers: tuple[LSTM, ...]
    last: Affine


@dataclass(frozen=True)
class CharLSTM(Sized):
    """Two LSTM layers that predict the next character from their last state.

    Inputs are whole numbers of shape (batch, steps), a character's place in the vocabulary; the
    model reads others, such as -1, as a zero vector, but `fedax.classification` refuses them.

    Args:
        vocabulary: characters, and classes; at least 1.
        vectors: numbers in a character's vector, at least 1.
        hidden: width of both layers, at least 1.
        biases: 1, or 2 as in PyTorch.
        peepholes: whether the gates see the cell.
        start: "glorot" (kernels uniform up to sqrt(6 / (fan in + fan out)), biases 0, a constant 1
            added to the forget gate) or "uniform" (layers uniform up to 1 / sqrt(hidden), vectors
            and last kernel uniform up to 0.1, last bias 0).

    Raises:
        InvalidInput: an argument out of range.

    >>> from fedax.models import parameter_count
    >>> parameter_count(CharLSTM(80)), parameter_count(CharLSTM(258, peepholes=True))
    (817872, 866578)
    """

    vocabulary: int
    vectors: int = 8
    hidden: int = 256
    biases: Literal[1, 2] = 1
    peepholes: bool = False
    start: Literal["glorot", "uniform"] = "glorot"

    def init(self, key: Key[Array, ""]) -> tuple[CharLSTMParams, None]:
        """Draws parameters as `start` says."""
        uniform = self.start == "uniform"
        # two layers, the vectors, the last kernel
        keys = jax.random.split(key, 4)
        hidden = self.hidden
        layers = [
            LSTM.init(
                k, inputs, hidden, biases=self.biases, peepholes=self.peepholes, uniform=uniform
            )
            for k, inputs in zip(keys, (self.vectors, hidden))
        ]
        draw = _narrow_uniform if uniform else jax.nn.initializers.glorot_uniform()
        embedding = draw(keys[2], (self.vocabulary, self.vectors))
        last = Affine.init(keys[3], hidden, self.vocabulary, draw)
        return CharLSTMParams(embedding, tuple(layers), last), None

    def apply(
        self, params: CharLSTMParams, state: None, x: Int[Array, "batch steps"], key: Any
    ) -> Logits:
        """Returns the logits of a batch, and no state."""
        # a product, because the gradient of a lookup scatters
        # (steps, batch, vocabulary): steps come first in an LSTM; -1 gives zeros
        one_hot = jax.nn.one_hot(x.T, self.vocabulary, dtype=params.embedding.dtype)
        h = (one_hot.reshape(-1, self.vocabulary) @ params.embedding).reshape(
            *one_hot.shape[:2], self.vectors
        )
        for layer in params.layers:
            h = layer(h, forget_bias=0.0 if self.start == "uniform" else 1.0)
        return params.last(h[-1]), None


def _narrow_uniform(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    return jax.random.uniform(key, shape, minval=-0.1, maxval=0.1)


class SentimentLSTMParams(NamedTuple):
    """The layers from the input on, then two fully connected ones."""

    layers: tuple[LSTM, ...]
    dense: tuple[Affine, Affine]


@dataclass(frozen=True)
class SentimentLSTM(Sized):
    """Two LSTM layers over frozen word vectors, and two linear layers.

    As FedProx and FedDANE train it on Sent140.

    Inputs are the words' vectors themselves, of shape (batch, steps, vectors): they are data and
    are not trained. There is one output z; the logits of the two classes are 0 and z, so that the
    cross-entropy is that of the sigmoid of z.

    Args:
        vectors: numbers in a word's vector, at least 1; 300 for GloVe.
        hidden: width of both LSTM layers, at least 1.
        dense: width of the linear layer between, at least 1.

    Raises:
        InvalidInput: an argument out of range.

    >>> from fedax.models import parameter_count
    >>> parameter_count(SentimentLSTM())
    243861
    """

    vectors: int = 300
    hidden: int = 100
    dense: int = 30

    def init(self, key: Key[Array, ""]) -> tuple[SentimentLSTMParams, None]:
        """Draws Glorot-uniform kernels; biases are zero."""
        first_key, second_key, dense_key, last_key = jax.random.split(key, 4)
        layers = (
            LSTM.init(first_key, self.vectors, self.hidden),
            LSTM.init(second_key, self.hidden, self.hidden),
        )
        dense = Affine.init(dense_key, self.hidden, self.dense)
        return SentimentLSTMParams(layers, (dense, Affine.init(last_key, self.dense, 1))), None

    def apply(
        self,
        params: SentimentLSTMParams,
        state: None,
        x: Float[Array, "batch steps vectors"],
        key: Any,
    ) -> Logits:
        """Returns the logits of a batch, and no state."""
        # (steps, batch, vectors)
        h = x.transpose(1, 0, 2)
        for layer in params.layers:
            h = layer(h, forget_bias=1.0)
        z = params.dense[1](params.dense[0](h[-1]))
        return jnp.concatenate([jnp.zeros_like(z), z], axis=1), None
