"""Small models of tokens: a transformer, and the mean of tokens' vectors."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedax.core import InvalidInput
from fedax.models.base import parameter_count
from fedax.models.dense import Affine
from fedax.utils.numbers import are_counts, convert_fields


class Norm(NamedTuple):
    """Parameters of layer normalisation."""

    scale: Float[Array, "width"]
    bias: Float[Array, "width"]

    @classmethod
    def init(cls, width: int) -> "Norm":
        """Returns scale 1 and bias 0."""
        return cls(jnp.ones(width), jnp.zeros(width))

    def __call__(self, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        centred = x - x.mean(-1, keepdims=True)
        unit = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        shape = (*(1,) * (x.ndim - 1), -1)
        return unit * self.scale.reshape(shape) + self.bias.reshape(shape)


class Block(NamedTuple):
    """One layer: attention and two dense layers, each after its norm."""

    before: Norm
    attention: Affine
    mixing: Affine
    between: Norm
    wide: Affine
    narrow: Affine


class TransformerParams(NamedTuple):
    """Parameters: vectors of tokens and places, layers, last norm, and the classifier.

    There is a classifier if there are classes.
    """

    tokens: Float[Array, "vocabulary width"]
    places: Float[Array, "length width"]
    blocks: tuple[Block, ...]
    last: Norm
    classes: Affine | None


@dataclass(frozen=True)
class Transformer:
    r"""A transformer of a few layers, with norms first, GELU, and learned places.

    Inputs are tokens of shape (batch, steps) with at most `length` steps, 0 for padding. Without
    `classes` it is a language model: place t sees the tokens up to t, and its logits for the next
    one are products with the tokens' own vectors, shape (batch, steps, vocabulary). With `classes`,
    every place sees all tokens but padding, and the logits are those of the mean over them, shape
    (batch, classes).

    Args:
        vocabulary: tokens with padding, at least 2.
        length: the most steps, at least 1.
        width: of the vectors, a multiple of `heads`.
        heads: of attention, at least 1.
        layers: at least 1.
        classes: at least 2, or None for a language model.

    Raises:
        InvalidInput: an argument out of range.

    Source: Radford et al., Language Models are Unsupervised Multitask Learners (GPT-2), 2019, Sec.
    2.3; without dropout.

    >>> import jax
    >>> model = Transformer(67, 80)
    >>> model.parameters, model(model.init(jax.random.key(0)), jnp.ones((3, 5), int)).shape
    (109504, (3, 5, 67))
    """

    vocabulary: int
    length: int
    width: int = 64
    heads: int = 4
    layers: int = 2
    classes: int | None = None

    def __post_init__(self) -> None:
        convert_fields(self)
        sizes = (self.length, self.width, self.heads, self.layers)
        labels = (self.vocabulary, 2 if self.classes is None else self.classes)
        if not are_counts(*sizes) or not are_counts(*labels, least=2):
            allowed = "vocabulary and classes >= 2, the others >= 1"
            raise InvalidInput.of("Transformer(...)", self, allowed)
        if self.width % self.heads:
            raise InvalidInput.of(
                "Transformer(width=...)", self.width, f"multiples of the {self.heads} heads"
            )

    @property
    def parameters(self) -> int:
        """Returns the number of parameters."""
        return parameter_count(self)

    def init(self, key: Key[Array, ""]) -> TransformerParams:
        """Draws parameters: normal with standard deviation 0.02, biases 0.

        Where a layer adds to its input, the deviation is divided by sqrt(2 layers).
        """
        width, keys = self.width, jax.random.split(key, self.layers + 3)
        # after the keys of tokens, places and classes
        blocks = tuple(self._init_block(block_key) for block_key in keys[3:])
        tokens, places = (
            _normal(keys[0], (self.vocabulary, width)),
            _normal(keys[1], (self.length, width)),
        )
        classes = (
            None if self.classes is None else Affine.init(keys[2], width, self.classes, _normal)
        )
        return TransformerParams(tokens, places, blocks, Norm.init(width), classes)

    def _init_block(self, key: Key[Array, ""]) -> Block:
        width, keys = self.width, jax.random.split(key, 4)

        # layers that add to their input, see `init`
        def draw_residual(key: Any, shape: tuple[int, ...]) -> Array:
            return _normal(key, shape) / (2 * self.layers) ** 0.5

        attention = (
            Affine.init(keys[0], width, 3 * width, _normal),
            Affine.init(keys[1], width, width, draw_residual),
        )
        dense = (
            Affine.init(keys[2], width, 4 * width, _normal),
            Affine.init(keys[3], 4 * width, width, draw_residual),
        )
        return Block(Norm.init(width), *attention, Norm.init(width), *dense)

    def __call__(
        self, params: TransformerParams, x: Int[Array, "batch steps"], key: Any = None
    ) -> Float[Array, "batch *_"]:
        """Returns the logits; more than `length` steps raise `InvalidInput`."""
        batch, steps = x.shape
        if steps > self.length:
            raise InvalidInput.of(
                "Transformer(length=...)", self.length, f"at least the {steps} steps of the inputs"
            )
        # a product, because the gradient of a lookup scatters; it costs as much as the logits
        one_hot = jax.nn.one_hot(x, self.vocabulary, dtype=params.tokens.dtype)
        h = one_hot @ params.tokens + params.places[None, :steps]
        # visible[b, t, s]: whether place t looks at place s
        is_token = x != 0
        if self.classes is None:
            # place t sees the places up to t; padding comes after all tokens
            visible = jnp.broadcast_to(
                jnp.tril(jnp.ones((steps, steps), bool))[None], (batch, steps, steps)
            )
        else:
            # all places see the tokens, and none sees padding
            visible = jnp.broadcast_to(is_token[:, None, :], (batch, steps, steps))
        for block in params.blocks:
            h = h + self._attend(block, block.before(h), visible)
            wide = jax.nn.gelu(_apply_rowwise(block.wide, block.between(h)))
            h = h + _apply_rowwise(block.narrow, wide)
        h = params.last(h)
        if params.classes is None:
            return jnp.einsum("btw,vw->btv", h, params.tokens)
        return params.classes(_mean_over_tokens(h, is_token))

    def _attend(
        self,
        block: Block,
        h: Float[Array, "batch steps width"],
        visible: Bool[Array, "batch steps steps"],
    ) -> Float[Array, "batch steps width"]:
        batch, steps, width = h.shape
        size = width // self.heads
        # (batch, steps, 3, heads, size): queries, keys and values
        projected = _apply_rowwise(block.attention, h).reshape(batch, steps, 3, self.heads, size)
        queries, keys, values = (projected[:, :, i] for i in range(3))
        scores = jnp.einsum("bthd,bshd->bhts", queries, keys) / size**0.5
        # a text of padding alone sees all places alike, and stays finite
        weights = jax.nn.softmax(
            jnp.where(visible[:, None], scores, jnp.finfo(scores.dtype).min), axis=-1
        )
        mixed = jnp.einsum("bhts,bshd->bthd", weights, values)
        return _apply_rowwise(block.mixing, mixed.reshape(batch, steps, width))


@dataclass(frozen=True)
class BagOfTokens:
    r"""Softmax regression on shares of tokens. Convex.

    Logits are the mean of a vector for each token, and a bias.

    Inputs are tokens of shape (batch, steps), 0 for padding, which does not count.

    Args:
        vocabulary: tokens with padding, at least 2.
        classes: at least 2.

    Raises:
        InvalidInput: a size out of range.

    >>> import jax
    >>> model = BagOfTokens(257, 2)
    >>> model.parameters, model(model.init(jax.random.key(0)), jnp.ones((3, 5), int)).shape
    (516, (3, 2))
    """

    vocabulary: int
    classes: int

    def __post_init__(self) -> None:
        convert_fields(self)
        sizes = (self.vocabulary, self.classes)
        if not are_counts(*sizes, least=2):
            raise InvalidInput.of("BagOfTokens(vocabulary, classes)", sizes, "whole numbers >= 2")

    @property
    def parameters(self) -> int:
        """Returns the number of parameters: (vocabulary + 1) classes."""
        return (self.vocabulary + 1) * self.classes

    def init(self, key: Key[Array, ""]) -> Affine:
        """Returns zeros: all classes are equally likely."""
        return Affine(jnp.zeros((self.vocabulary, self.classes)), jnp.zeros(self.classes))

    def __call__(
        self, params: Affine, x: Int[Array, "batch steps"], key: Any = None
    ) -> Float[Array, "batch classes"]:
        one_hot = jax.nn.one_hot(x, self.vocabulary, dtype=params.kernel.dtype)
        return params(_mean_over_tokens(one_hot, x != 0))


def _normal(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    return 0.02 * jax.random.normal(key, shape)


def _apply_rowwise(
    layer: Affine, x: Float[Array, "batch steps inputs"]
) -> Float[Array, "batch steps outputs"]:
    return layer(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1)


def _mean_over_tokens(
    h: Float[Array, "batch steps width"], is_token: Bool[Array, "batch steps"]
) -> Float[Array, "batch width"]:
    """Computes the mean over the places that are not padding; zeros if there are none."""
    count = jnp.maximum(is_token.sum(1, dtype=jnp.int32), 1).astype(h.dtype)
    return jnp.where(is_token[:, :, None], h, 0).sum(1) / count[:, None]
