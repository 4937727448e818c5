"""Layers of PyTorch's exported graphs by fedax's operations, which are faster on CPUs than XLA's.

Arrays keep PyTorch's order of axes between layers: images are (batch, channels, rows, columns),
kernels (outputs, channels, height, width). Layers turn them, and XLA makes most turns a choice of
memory layout.
"""

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

Sizes = Sequence[int]
LARGEST_MARKED = 1024
"""Up to so many rows a lookup is a product with marks, because the gradient of a lookup
scatters."""


def channels_last(x: Array) -> Array:
    """Turns (batch, channels, rows, columns) into (batch, rows, columns, channels)."""
    return x.transpose(0, 2, 3, 1)


def channels_first(x: Array) -> Array:
    """Inverts `channels_last`."""
    return x.transpose(0, 3, 1, 2)


# Dense layers


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Multiplies the last axis by a kernel with a row for each output."""
    y = product_by_rows(x.reshape(-1, x.shape[-1]), weight).reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


def _embedding(
    weight: Array, rows: Array, padding: int = -1, scale: bool = False, sparse: bool = False
) -> Array:
    if scale:
        raise InvalidInput.because("models.torch(module=...)", "has scale_grad_by_freq=True")
    if padding >= 0:  # this row gets no gradient
        weight = weight.at[padding].set(lax.stop_gradient(weight[padding]))
    if len(weight) > LARGEST_MARKED:
        vectors = jnp.take(weight, rows, axis=0)
    else:
        vectors = jax.nn.one_hot(rows, len(weight), dtype=weight.dtype) @ weight
    # PyTorch ends at such a row; a compiled program cannot, but NaN ends the run
    is_row = (rows >= 0) & (rows < len(weight))
    return jnp.where(is_row[..., None], vectors, jnp.nan)


# Convolutions


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
    if x.ndim == 4 and set(dilation) == {1} and not transposed and groups == 1:
        y = convolve(
            channels_last(x),
            # from (outputs, channels, height, width) to (height, width, channels, outputs)
            weight.transpose(2, 3, 1, 0),
            stride=(stride[0], stride[1]),
            padding=((padding[0], padding[0]), (padding[1], padding[1])),
        )
        return channels_first(y if bias is None else y + bias)
    spread = None
    widths = [(p, p) for p in padding]
    if transposed:
        # a convolution over inputs that the stride spreads apart, with the kernel turned around:
        # (inputs, outputs of a group, ...) becomes (outputs, inputs of a group, ...)
        sizes = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
        widths = [(s - p, s - p + extra) for s, p, extra in zip(sizes, padding, output_padding)]
        spread = stride
        stride = (1,) * len(stride)
        by_group = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
        turned = by_group.reshape(-1, *by_group.shape[2:])
        weight = jnp.flip(turned, tuple(range(2, x.ndim)))
    y = lax.conv_general_dilated(
        x, weight, stride, widths, spread, dilation, feature_group_count=groups
    )
    return y if bias is None else y + bias.reshape(-1, *(1,) * len(stride))


# Pooling


def _expand(numbers: int | Sizes, count: int) -> list[int]:
    """Returns a number for each axis, of one number for all or of one for each."""
    numbers = [numbers] if isinstance(numbers, int) else list(numbers)
    return numbers * (count // len(numbers))


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
    ends = []
    for size, k, s, p, d in zip(x.shape[-len(window) :], window, stride, padding, dilation):
        # how far behind the first window the last one may begin
        free = size + 2 * p - d * (k - 1) - 1
        # what a last, partly filled window needs beyond the input
        excess = -free % s if ceil else 0
        # a window that begins in the padding behind is left out
        if excess and free + excess >= size + p:
            excess = 0
        ends.append((p, p + excess))
    lead = (1,) * (x.ndim - len(window))
    widths = [(0, 0)] * len(lead) + ends
    strides = (*lead, *stride)
    dilations = (*lead, *dilation)
    # a number of NumPy: of an array JAX could not tell the reduction in a compiled program
    return lax.reduce_window(
        x, np.asarray(start, x.dtype), combine, (*lead, *window), strides, widths, None, dilations
    )


def _max_pool(
    x: Array,
    window: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    ceil: bool = False,
) -> Array:
    stride, padding, dilation = (
        _expand(numbers, len(window)) for numbers in (stride or window, padding, dilation)
    )
    # fedax's windows are those of images, side by side
    is_side_by_side = list(window) == stride and not any(padding) and set(dilation) == {1}
    is_image = x.ndim == 4 and len(window) == 2 and math.prod(window) <= 250
    if is_image and is_side_by_side and not ceil:
        return channels_first(max_pool(channels_last(x), (window[0], window[1])))
    return _pool(x, window, stride, padding, dilation, ceil, -jnp.inf, lax.max)


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
    if divisor is not None:
        return total / divisor
    counts = np.ones((), int)
    for axis, (k, s, p) in enumerate(zip(window, stride, padding), x.ndim - count):
        begins = s * np.arange(total.shape[axis]) - p
        # PyTorch counts the padding, but not what a window exceeds it by
        counted = p if count_padding else 0
        last = np.minimum(begins + k, x.shape[axis] + counted)
        # a window of padding alone has the sum 0
        counts = counts[..., None] * np.maximum(last - np.maximum(begins, -counted), 1)
    return total / jnp.asarray(counts, x.dtype)


def _adaptive_average(x: Array, sizes: Sizes) -> Array:
    for axis, size in enumerate(sizes, x.ndim - len(sizes)):
        length = x.shape[axis]
        rows = np.arange(size)[:, None]
        columns = np.arange(length)
        # (outputs, inputs): the share of each input in the mean of its region
        begins = rows * length // size
        ends = -(-(rows + 1) * length // size)
        shares = ((begins <= columns) & (columns < ends)) / (ends - begins)
        y = jnp.tensordot(jnp.asarray(shares, x.dtype), x, (1, axis))
        x = jnp.moveaxis(y, 0, axis)
    return x


# Norms


def _group_norm(
    x: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = EPSILON,
    fast: bool = True,
) -> Array:
    weight = jnp.ones(x.shape[1], x.dtype) if weight is None else weight
    bias = jnp.zeros(x.shape[1], x.dtype) if bias is None else bias
    images = x if x.ndim == 4 else x.reshape(*x.shape[:2], -1, 1)
    if eps != EPSILON:  # which scaled numbers have
        images = images * math.sqrt(EPSILON / eps)
    y = channels_first(group_norm(channels_last(images), weight, bias, groups))
    return y.reshape(x.shape)


LAYERS: dict[str, Callable[..., Array]] = {
    "linear": linear,
    "embedding": _embedding,
    "convolution": _convolution,
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), _max_pool),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _average_pool),
    **dict.fromkeys(
        ("adaptive_avg_pool1d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _adaptive_average
    ),
    "group_norm": _group_norm,
}
"""Functions by the operators' names, as `OPERATORS`."""
