"""Softmax regression and the multilayer perceptron."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedax.core import InvalidInput
from fedax.models.base import Logits, Sized
from fedax.ops import affine


class Affine(NamedTuple):
    """Parameters of x -> x kernel + bias.

    The kernel comes first, as in the flat vectors of the released codes.
    """

    kernel: Float[Array, "inputs outputs"]
    bias: Float[Array, "outputs"]

    @classmethod
    def init(
        cls,
        key: Key[Array, ""],
        inputs: int,
        outputs: int,
        start: Callable[..., Array] | None = None,
    ) -> "Affine":
        """Draws the kernel by an initializer of JAX; the bias is zero.

        By default uniform up to sqrt(6 / (inputs + outputs)) (Glorot).
        """
        start = jax.nn.initializers.glorot_uniform() if start is None else start
        return cls(start(key, (inputs, outputs)), jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "batch inputs"]) -> Float[Array, "batch outputs"]:
        return affine.product(x, self.kernel) + self.bias[None, :]


narrow_normal = jax.nn.initializers.normal(0.01)


def dropout(
    x: Float[Array, "batch features"], rate: float, key: Any
) -> Float[Array, "batch features"]:
    """Applies dropout; returns its input unchanged without a key.

    Each number becomes 0 with probability `rate`, and is divided by 1 - rate otherwise.

    >>> dropout(jnp.ones((1, 2)), 0.5, None).tolist()
    [[1.0, 1.0]]
    """
    if key is None or rate == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def _check_rows(model: str, x: Any, features: int) -> None:
    """Refuses a batch whose examples are not rows of so many numbers.

    Raises:
        InvalidInput: such a batch; `model` names the model in the message.
    """
    shape = tuple(x.shape[1:])
    if x.ndim == 2 and shape == (features,):
        return
    is_image = len(shape) > 1 and math.prod(shape) == features
    allowed = f"rows of {features} number{'s' * (features > 1)}"
    hint = "Write x.reshape(len(x), -1)." if is_image else ""
    raise InvalidInput.found(model, f"examples of shape {shape}", allowed, hint)


@dataclass(frozen=True)
class Softmax(Sized):
    r"""Multinomial logistic regression: logits $x W + b$. Convex in its parameters.

    Args:
        features: at least 1.
        classes: at least 1.

    Raises:
        InvalidInput: a size out of range.

    >>> import jax
    >>> model = Softmax(60, 10)
    >>> params, _ = model.init(jax.random.key(0))
    >>> model.apply(params, None, jnp.ones((3, 60)), None)[0].shape
    (3, 10)
    """

    features: int
    classes: int

    def init(self, key: Key[Array, ""]) -> tuple[Affine, None]:
        """Draws parameters (kernel, bias) of shapes (features, classes) and (classes,)."""
        return Affine.init(key, self.features, self.classes), None

    def apply(
        self, params: Affine, state: None, x: Float[Array, "batch features"], key: Any
    ) -> Logits:
        """Returns the logits of a batch, and no state."""
        _check_rows("Softmax", x, self.features)
        return params(x), None


@dataclass(frozen=True)
class MLP(Sized):
    """Fully connected layers with ReLU between them, none after the last.

    Args:
        widths: features, hidden widths, classes, all at least 1.
            `MLP((784, 200, 200, 10))` is the "2NN" of McMahan et al. (arXiv:1602.05629).
        dropout: probability with which a hidden unit is left out of a training step, in [0, 1);
            none in evaluation.

    Raises:
        InvalidInput: a width or a dropout out of range.

    >>> from fedax.models import parameter_count
    >>> parameter_count(MLP((784, 200, 200, 10)))
    199210
    """

    widths: tuple[int, ...]
    dropout: float = 0.0

    def init(self, key: Key[Array, ""]) -> tuple[tuple[Affine, ...], None]:
        """Draws one (kernel, bias) for each layer, from the input on."""
        keys = jax.random.split(key, len(self.widths) - 1)
        layers = [
            Affine.init(k, inputs, outputs)
            for k, (inputs, outputs) in zip(keys, pairwise(self.widths))
        ]
        return tuple(layers), None

    def apply(
        self, params: tuple[Affine, ...], state: None, x: Float[Array, "batch features"], key: Any
    ) -> Logits:
        """Returns the logits of a batch, and no state."""
        _check_rows("MLP", x, self.widths[0])
        *hidden, last = params
        # one key for each hidden layer; none without a key, that is in evaluation
        keys = [None] * len(hidden) if key is None else jax.random.split(key, len(hidden))
        for layer, layer_key in zip(hidden, keys):
            x = jax.nn.relu(dropout(layer(x), self.dropout, layer_key))
        return last(x), None
