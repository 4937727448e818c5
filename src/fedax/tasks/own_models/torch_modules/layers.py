"""Layers of PyTorch's exported graphs by fedax's operations, which are faster on CPUs than XLA's.

Arrays keep PyTorch's order of axes between layers: images are (batch, channels, rows, columns),
kernels (outputs, channels, height, width). Layers turn them, and XLA makes most turns a choice of
memory layout.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from fedax.core import InvalidInput
from fedax.ops import convolve, group_norm, max_pool
from fedax.ops.affine import product_by_rows
from fedax.ops.norm import EPSILON
from fedax.tasks.own_models.torch_modules.operators import operator

Sizes = Sequence[int]
CONTEXTUAL: dict[str, Callable[..., Any]] = {}
"""Operators that also take the step's `Context`, as their first argument."""
LARGEST_MARKED = 1024
"""Up to so many rows a lookup is a product with marks, because the gradient of a lookup
scatters."""


class Draws:
    """Draws from a random key: another array for each operator that asks."""

    def __init__(self, key: Array) -> None:
        self.key = key
        self.count = 0

    def __call__(self, probability: float, shape: Sizes) -> Array:
        """Returns an array that is True with a probability."""
        self.count += 1
        return jax.random.bernoulli(jax.random.fold_in(self.key, self.count), probability, shape)


@dataclasses.dataclass(frozen=True)
class Context:
    """What the operators of one call share beside arrays.

    Attributes:
        draw: as `Draws`; None in evaluation.
    """

    draw: Callable[[float, Sizes], Array | float] | None = None


EVALUATION = Context()


def contextual(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function for operators that need the context."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CONTEXTUAL.update(dict.fromkeys(names, function))
        return function

    return register


def channels_last(x: Array) -> Array:
    """Turns (batch, channels, rows, columns) into (batch, rows, columns, channels)."""
    return x.transpose(0, 2, 3, 1)


def channels_first(x: Array) -> Array:
    """Inverts `channels_last`."""
    return x.transpose(0, 3, 1, 2)


# Dense layers


@operator("linear.default")
def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    y = product_by_rows(x.reshape(-1, x.shape[-1]), weight).reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


@operator("embedding.default")
def _embedding(
    weight: Array, rows: Array, padding: int = -1, scale: bool = False, sparse: bool = False
) -> Array:
    if scale:
        got = "an embedding with scale_grad_by_freq"
        raise InvalidInput.found("from_torch(module=...)", got, "embeddings without it")
    if padding >= 0:  # this row gets no gradient
        weight = weight.at[padding].set(lax.stop_gradient(weight[padding]))
    if weight.shape[0] > LARGEST_MARKED:
        vectors = jnp.take(weight, rows, axis=0)
    else:
        one_hot = jax.nn.one_hot(rows.reshape(-1), weight.shape[0], dtype=weight.dtype)
        vectors = (one_hot @ weight).reshape(*rows.shape, weight.shape[1])
    # PyTorch ends at such a row; a compiled program cannot, but NaN ends the run
    is_row = (rows >= 0) & (rows < weight.shape[0])
    return jnp.where(is_row[..., None], vectors, jnp.nan)


# Convolutions


@operator("convolution.default")
def _convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Array:
    spatial = (1,) * (x.ndim - 2)
    if x.ndim == 4 and set(dilation) == {1} and not transposed and groups == 1:
        y = convolve(
            channels_last(x),
            # from (outputs, channels, height, width) to (height, width, channels, outputs)
            weight.transpose(2, 3, 1, 0),
            stride=(stride[0], stride[1]),
            padding=((padding[0], padding[0]), (padding[1], padding[1])),
        )
        return channels_first(y if bias is None else y + bias)
    if transposed:
        # a convolution over inputs that the stride spreads apart
        sizes = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
        widths = [
            (size - p, size - p + extra) for size, p, extra in zip(sizes, padding, output_padding)
        ]
        # (inputs, outputs of a group, ...), as kernel (outputs, inputs of a group, ...), turned
        # around
        by_group = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
        kernel = jnp.flip(by_group.reshape(-1, *by_group.shape[2:]), tuple(range(2, x.ndim)))
        y = lax.conv_general_dilated(
            x, kernel, (1,) * len(spatial), widths, stride, dilation, feature_group_count=groups
        )
    else:
        widths = [(p, p) for p in padding]
        y = lax.conv_general_dilated(
            x, weight, stride, widths, None, dilation, feature_group_count=groups
        )
    return y if bias is None else y + bias.reshape(-1, *spatial)


# Pooling


def _expand(numbers: int | Sizes, count: int) -> list[int]:
    """Returns a number for each axis, of one number for all or of one for each."""
    numbers = [numbers] if isinstance(numbers, int) else list(numbers)
    return numbers * (count // len(numbers))


@operator("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def _max_pool(
    x: Array,
    window: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    ceil: bool = False,
) -> Array:
    count = len(window)
    stride = _expand(stride or window, count)
    padding = _expand(padding, count)
    dilation = _expand(dilation, count)
    # fedax's windows are those of images, side by side
    is_side_by_side = list(window) == stride and not any(padding) and set(dilation) == {1}
    if x.ndim == 4 and count == 2 and is_side_by_side and not ceil and math.prod(window) <= 250:
        return channels_first(max_pool(channels_last(x), (window[0], window[1])))
    return _pool(x, window, stride, padding, dilation, ceil, -jnp.inf, lax.max)


def _pool(
    x: Array,
    window: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil: bool,
    start: float,
    combine: Callable[..., Any],
) -> Array:
    count = len(window)
    ends = []
    for size, k, s, p, d in zip(x.shape[-count:], window, stride, padding, dilation):
        # how far behind the first window the last one may begin
        free = size + 2 * p - d * (k - 1) - 1
        # what a last, partly filled window needs beyond the input
        excess = -free % s if ceil else 0
        # a window that begins in the padding behind is left out
        if excess and (-(-free // s)) * s >= size + p:
            excess = 0
        ends.append((p, p + excess))
    lead = (1,) * (x.ndim - count)
    widths = [(0, 0)] * len(lead) + ends
    strides, dilations = (*lead, *stride), (*lead, *dilation)
    # a number of NumPy: of an array JAX could not tell the reduction in a compiled program
    return lax.reduce_window(
        x, np.asarray(start, x.dtype), combine, (*lead, *window), strides, widths, None, dilations
    )


@operator("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _average_pool(
    x: Array,
    window: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Array:
    count = len(window)
    stride = _expand(stride or window, count)
    padding = _expand(padding, count)
    total = _pool(x, window, stride, padding, [1] * count, ceil, 0.0, lax.add)
    # all windows count equally many numbers
    if divisor is not None or (count_padding and not ceil) or (not any(padding) and not ceil):
        return total / (divisor or math.prod(window))
    counts = np.ones((), int)
    for axis, (k, s, p) in enumerate(zip(window, stride, padding, strict=True), x.ndim - count):
        begins = s * np.arange(total.shape[axis]) - p
        # PyTorch counts the padding, but not what a window exceeds it by
        low, high = (-p, x.shape[axis] + p) if count_padding else (0, x.shape[axis])
        # a window of padding alone has the sum 0
        widths = np.maximum(np.minimum(begins + k, high) - np.maximum(begins, low), 1)
        counts = counts[..., None] * widths
    return total / jnp.asarray(counts, x.dtype)


@operator(
    "adaptive_avg_pool1d.default",
    "_adaptive_avg_pool2d.default",
    "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool3d.default",
)
def _adaptive_average(x: Array, sizes: Sizes) -> Array:
    for axis, size in enumerate(sizes, x.ndim - len(sizes)):
        length = x.shape[axis]
        # (outputs, inputs): the share of each input in the mean of its region
        shares = [[0.0] * length for _ in range(size)]
        for k in range(size):
            begin, end = k * length // size, -(-(k + 1) * length // size)
            shares[k][begin:end] = [1 / (end - begin)] * (end - begin)
        x = _mix_axis(x, axis, shares)
    return x


def _mix_axis(x: Array, axis: int, shares: Any) -> Array:
    """Multiplies an axis by a matrix (outputs, inputs)."""
    return jnp.moveaxis(jnp.tensordot(jnp.asarray(shares, x.dtype), x, (1, axis)), 0, axis)


@operator("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def _upsample_nearest(x: Array, sizes: Sizes | None, factors: Sequence[float] | None) -> Array:
    for axis in range(2, x.ndim):
        size = (
            sizes[axis - 2] if sizes is not None else int(x.shape[axis] * (factors or ())[axis - 2])
        )
        # factors that are given count as they are, not the ratio of the rounded sizes
        step = x.shape[axis] / size if factors is None else 1 / factors[axis - 2]
        indices = [min(int(k * step), x.shape[axis] - 1) for k in range(size)]
        x = jnp.take(x, jnp.asarray(indices), axis=axis)
    return x


@operator("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def _upsample_linear(
    x: Array, sizes: Sizes | None, corners: bool, factors: Sequence[float] | None
) -> Array:
    for axis in range(2, x.ndim):
        length = x.shape[axis]
        size = sizes[axis - 2] if sizes is not None else int(length * (factors or ())[axis - 2])
        step = length / size if factors is None else 1 / factors[axis - 2]
        positions = (
            np.arange(size) * (length - 1) / max(size - 1, 1)
            if corners
            else (np.arange(size) + 0.5) * step - 0.5
        )
        # places beyond the border lie on it
        positions = np.clip(positions, 0, length - 1)
        # each output lies between two neighbours
        x = _mix_axis(x, axis, np.maximum(1 - abs(positions[:, None] - np.arange(length)), 0))
    return x


# Norms


@operator("layer_norm.default")
def _layer_norm(
    x: Array,
    shape: Sizes,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    fast: bool = False,
) -> Array:
    last = tuple(range(-len(shape), 0))
    centred = x - x.mean(last, keepdims=True)
    y = centred * lax.rsqrt((centred**2).mean(last, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@operator("rms_norm.default")
def _rms_norm(
    x: Array, shape: Sizes, weight: Array | None = None, eps: float | None = None
) -> Array:
    last = tuple(range(-len(shape), 0))
    y = x * lax.rsqrt(
        (x**2).mean(last, keepdims=True) + (jnp.finfo(x.dtype).eps if eps is None else eps)
    )
    return y if weight is None else y * weight


@operator("group_norm.default")
def _group_norm(
    x: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    fast: bool = True,
) -> Array:
    weight, bias = _fill_affine(x, weight, bias)
    if x.ndim == 4 and eps == EPSILON:
        return channels_first(group_norm(channels_last(x), weight, bias, groups))
    # (batch, groups, numbers of a group)
    by_group = x.reshape(x.shape[0], groups, -1)
    centred = by_group - by_group.mean(2, keepdims=True)
    y = (centred * lax.rsqrt((centred**2).mean(2, keepdims=True) + eps)).reshape(x.shape)
    return y * _broadcast_channels(weight, x) + _broadcast_channels(bias, x)


def _fill_affine(x: Array, weight: Array | None, bias: Array | None) -> tuple[Array, Array]:
    return (
        jnp.ones(x.shape[1], x.dtype) if weight is None else weight,
        jnp.zeros(x.shape[1], x.dtype) if bias is None else bias,
    )


def _broadcast_channels(values: Array, x: Array) -> Array:
    return values.reshape(-1, *(1,) * (x.ndim - 2))


@operator("_native_batch_norm_legit_functional.default")
def _batch_norm(
    x: Array, weight: Any, bias: Any, mean: Array, var: Array, *settings: Any
) -> tuple[Any, ...]:
    """Returns outputs, two that nothing reads, and the new running statistics.

    A batch with a single number per channel, which PyTorch refuses, has variance 0, as in Flax.
    """
    training, momentum, eps = settings
    if not training:
        return (*_normalise(x, weight, bias, mean, var, eps), mean, var)
    batch_mean, batch_var, count = _statistics(x)
    # the running variance is that of a sample, as in PyTorch: count / (count - 1), but not 1 / 0
    divisor = count - 1 + (count < 2)
    running = (
        (1 - momentum) * mean + momentum * batch_mean,
        (1 - momentum) * var + momentum * batch_var * (count / divisor),
    )
    # like running statistics, without a gradient
    return (
        *_normalise(x, weight, bias, batch_mean, batch_var, eps),
        *map(lax.stop_gradient, running),
    )


@operator("_native_batch_norm_legit.no_stats")
def _batch_norm_without_state(
    x: Array, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    batch_mean, batch_var, _ = _statistics(x)
    return _normalise(x, weight, bias, batch_mean, batch_var, eps)


@operator("_native_batch_norm_legit_no_training.default")
def _batch_norm_in_evaluation(
    x: Array, weight: Any, bias: Any, mean: Array, var: Array, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _normalise(x, weight, bias, mean, var, eps)


def _statistics(x: Array) -> tuple[Array, Array, float]:
    """Returns mean and variance of each channel, over how many numbers."""
    reduced_axes = (0, *range(2, x.ndim))
    return x.mean(reduced_axes), x.var(reduced_axes), math.prod(x.shape) / x.shape[1]


def _normalise(
    x: Array, weight: Any, bias: Any, mean: Array, var: Array, eps: float
) -> tuple[Array, None, None]:
    scale = lax.rsqrt(var + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return x * _broadcast_channels(scale, x) + _broadcast_channels(shift, x), None, None


# Dropout and attention


def drop(context: Context, x: Array, rate: float) -> Array:
    """Applies dropout."""
    if context.draw is None or rate == 0:
        return x
    return x * context.draw(1 - rate, x.shape) / (1 - rate) if rate < 1 else jnp.zeros_like(x)


@contextual("native_dropout.default")
def _native_dropout(
    context: Context, x: Array, rate: float, training: bool | None = True
) -> tuple[Array, None]:
    return x if training is False else drop(context, x, rate), None


@contextual("dropout.default")
def _dropout(context: Context, x: Array, rate: float, training: bool) -> Array:
    return drop(context, x, rate) if training else x


@contextual("bernoulli.p")
def _bernoulli(context: Context, x: Array, rate: float, *, generator: None = None) -> Array:
    """Returns ones with a probability, else zeros: the draws of dropout of whole channels and of
    alpha dropout, which PyTorch exports as arithmetic.
    """
    if context.draw is None:
        reason, hint = "draws random numbers in evaluation", "Draw them if self.training."
        raise InvalidInput.because("from_torch(module=...)", reason, hint)
    return jnp.broadcast_to(context.draw(rate, x.shape), x.shape).astype(x.dtype)


@contextual("scaled_dot_product_attention.default")
def _attention(
    context: Context,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    if enable_gqa:  # several heads of queries share one of keys and values
        repeats = query.shape[-3] // key.shape[-3]
        key, value = jnp.repeat(key, repeats, -3), jnp.repeat(value, repeats, -3)
    scores = jnp.einsum("...td,...sd->...ts", query, key) * (
        query.shape[-1] ** -0.5 if scale is None else scale
    )
    if causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        # True takes part; numbers are added
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
    weights = jax.nn.softmax(scores, axis=-1)
    weights = drop(context, weights, dropout)
    return jnp.einsum("...ts,...sd->...td", weights, value)
