"""Convolution of images `(batch, rows, columns, channels)`, in the form that is fast where it runs.

Compilers for GPUs choose well by themselves. XLA's CPU compiler does so for the forward product of many channels only; inside a
loop its gradient by the kernel is up to sixty times slower than the arithmetic. There, the three products are written out.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fedax.core import InvalidInput

Images: TypeAlias = Float[Array, "_ _ _ _"]
"""Of shape (batch, rows, columns, channels)."""
Kernel: TypeAlias = Float[Array, "_ _ _ _"]
"""Of shape (height, width, channels, outputs)."""
Borders: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

FEW = 16
"""Below so many channels a product over channels alone leaves most of a CPU's vector unit idle."""
_DIMENSIONS = ("NHWC", "HWIO", "NHWC")


class Geometry(NamedTuple):
    """What a convolution does beside its arrays: steps between outputs, and zeros added around the image."""

    stride: int
    borders: Borders


def convolve(
    x: Images,
    kernel: Kernel,
    *,
    stride: int = 1,
    padding: str = "VALID",
    formulation: str | None = None,
) -> Images:
    r"""$y_{rcq} = \sum_{ijp} x_{sr+i,\, sc+j,\, p}\, k_{ijpq}$, the convolution of neural networks, with stride s.

    Args:
        x: images of shape (batch, rows, columns, channels).
        kernel: of shape (height, width, channels, outputs).
        stride: at least 1.
        padding: "VALID" places the kernel inside the image only; "SAME" adds zeros around it, so that there are
            ceil(rows / stride) rows of outputs.
        formulation: "native" leaves all to XLA; "products" writes forward pass and both gradients as products that run fast
            on a CPU, and has reverse-mode derivatives only. None: "products" on CPUs, "native" elsewhere.

    Raises:
        InvalidInput: another formulation, padding or stride, or an image smaller than the kernel.

    >>> convolve(jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 5))).shape
    (1, 2, 2, 5)
    """
    if formulation not in (None, "native", "products"):
        raise InvalidInput.of("convolve(formulation=...)", formulation, "'native', 'products' or None")
    geometry = Geometry(stride, borders(x.shape[1:3], kernel.shape[:2], stride, padding))
    if formulation is None:
        formulation = "products" if jax.default_backend() == "cpu" else "native"
    return (_native if formulation == "native" else _products)(x, kernel, geometry)


def borders(image: tuple[int, ...], kernel: tuple[int, ...], stride: int, padding: str) -> Borders:
    """Zeros before and after rows and columns; of an odd number, the larger part comes after."""
    if padding not in ("SAME", "VALID") or stride < 1:
        raise InvalidInput.of("convolve(padding, stride)", (padding, stride), "'SAME' or 'VALID', and a stride >= 1")
    if padding == "VALID":
        if min(image[0] - kernel[0], image[1] - kernel[1]) < 0:
            raise InvalidInput.of("convolve(x=...)", image, f"images of at least {kernel[0]} x {kernel[1]}")
        return (0, 0), (0, 0)
    added = [max((-(-n // stride) - 1) * stride + k - n, 0) for n, k in zip(image, kernel)]
    return (added[0] // 2, added[0] - added[0] // 2), (added[1] // 2, added[1] - added[1] // 2)


def _native(x: Images, kernel: Kernel, geometry: Geometry) -> Images:
    stride = (geometry.stride, geometry.stride)
    return lax.conv_general_dilated(x, kernel, stride, geometry.borders, dimension_numbers=_DIMENSIONS)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _products(x: Images, kernel: Kernel, geometry: Geometry) -> Images:
    if 1 < x.shape[3] <= 4 and geometry.stride == 1:
        return _in_blocks(x, kernel, geometry)
    return _native(x, kernel, geometry)


def _forward(x: Images, kernel: Kernel, geometry: Geometry) -> tuple[Images, tuple[Images, Kernel]]:
    return _products(x, kernel, geometry), (x, kernel)


def _backward(geometry: Geometry, saved: tuple[Images, Kernel], slope: Images) -> tuple[Images, Kernel]:
    x, kernel = saved
    return _image_slope(x.shape, kernel, geometry, slope), _kernel_slope(x, kernel.shape, geometry, slope)


_products.defvjp(_forward, _backward)


def _kernel_slope(x: Images, kernel: tuple[int, ...], geometry: Geometry, slope: Images) -> Kernel:
    padded = _padded(x, geometry.borders)
    if kernel[2] < FEW and geometry.stride == 1:
        return _by_spans(padded, kernel, slope)
    return _by_places(padded, kernel, geometry, slope)


def _by_spans(padded: Images, kernel: tuple[int, ...], slope: Images) -> Kernel:
    """Stride 1 with few channels: one product for each row of the kernel, over spans of neighbouring columns.

    A span of outputs meets all the pixels that any of its columns sees. The product of the two holds what each place of the
    kernel gets along its diagonals, and beside them terms that are not used, which cost less than short products do.
    """
    height, width, channels, outputs = kernel
    batch, rows, columns, _ = slope.shape
    span = min(columns, width + 2)
    spans = -(-columns // span)
    filled = ((0, 0), (0, 0), (0, spans * span - columns), (0, 0))
    right = jnp.pad(slope, filled).reshape(-1, span * outputs)
    seen = jnp.pad(padded, filled).reshape(batch, padded.shape[1], -1)
    step, length = span * channels, (span + width - 1) * channels
    seen = jnp.stack([seen[:, :, k * step : k * step + length] for k in range(spans)], 2)

    def row(i: int) -> Array:
        product = seen[:, i : i + rows].reshape(-1, length).T @ right
        blocks = product.reshape(span + width - 1, channels, span, outputs)
        places = [blocks[t : t + width, :, t] for t in range(span)]
        return sum(places[1:], places[0])

    return jnp.stack([row(i) for i in range(height)])


def _by_places(padded: Images, kernel: tuple[int, ...], geometry: Geometry, slope: Images) -> Kernel:
    """One product for each place of the kernel: the image under that place, times the slope, over all pixels at once."""
    rows, columns = slope.shape[1:3]
    right = slope.reshape(-1, kernel[3])

    def at(i: int, j: int) -> Array:
        under = _under(padded, i, j, rows, columns, geometry.stride)
        return under.reshape(-1, kernel[2]).T @ right

    return jnp.stack([at(i, j) for i in range(kernel[0]) for j in range(kernel[1])]).reshape(kernel)


def _image_slope(image: tuple[int, ...], kernel: Kernel, geometry: Geometry, slope: Images) -> Images:
    if geometry.stride == 1 and image[3] >= FEW:
        return _by_flipped_kernel(image, kernel, geometry, slope)
    return _by_adding(image, kernel, geometry, slope)


def _by_flipped_kernel(image: tuple[int, ...], kernel: Kernel, geometry: Geometry, slope: Images) -> Images:
    """Stride 1: a convolution of the slope, written in the order of axes for which XLA has a fast one."""
    widths = [
        (k - 1 - low, n + low - m)
        for k, n, m, (low, _) in zip(kernel.shape[:2], image[1:3], slope.shape[1:3], geometry.borders)
    ]
    turned = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    return _native(_padded(slope, (widths[0], widths[1])), turned, Geometry(1, ((0, 0), (0, 0))))


def _by_adding(image: tuple[int, ...], kernel: Kernel, geometry: Geometry, slope: Images) -> Images:
    """One product for all places of the kernel, whose results are added where they belong."""
    height, width, channels, outputs = kernel.shape
    (top, bottom), (left, right) = geometry.borders
    batch, rows, columns, _ = slope.shape
    parts = slope.reshape(-1, outputs) @ kernel.transpose(3, 0, 1, 2).reshape(outputs, -1)
    parts = parts.reshape(batch, rows, columns, height, width, channels)
    s = geometry.stride
    total = jnp.zeros((batch, image[1] + top + bottom, image[2] + left + right, channels), slope.dtype)
    for i in range(height):
        for j in range(width):
            total = total.at[:, i : i + s * rows : s, j : j + s * columns : s].add(parts[:, :, :, i, j])
    return total[:, top : top + image[1], left : left + image[2]]


def _in_blocks(x: Images, kernel: Kernel, geometry: Geometry) -> Images:
    """Stride 1 with few channels: 2 x 2 outputs at a time are the outputs of one product over 2 x 2 times the channels.

    The kernel of a block holds the given one at four places; its zeros cost less than short products do.
    """
    (top, bottom), (left, right) = geometry.borders
    height, width, channels, outputs = kernel.shape
    rows, columns = x.shape[1] + top + bottom - height + 1, x.shape[2] + left + right - width + 1
    tall, wide = -(-(height + 1) // 2), -(-(width + 1) // 2)
    ends = [2 * (-(-n // 2) + taps - 1) - size for n, taps, size in ((rows, tall, x.shape[1]), (columns, wide, x.shape[2]))]
    folded = _fold(_padded(x, ((top, ends[0] - top), (left, ends[1] - left))))
    places = [
        jnp.pad(kernel, ((p, 2 * tall - height - p), (q, 2 * wide - width - q), (0, 0), (0, 0)))
        for p in (0, 1)
        for q in (0, 1)
    ]
    block = jnp.stack(places, 3).reshape(tall, 2, wide, 2, channels, 4 * outputs)
    block = block.transpose(0, 2, 1, 3, 4, 5).reshape(tall, wide, 4 * channels, 4 * outputs)
    y = _native(folded, block, Geometry(1, ((0, 0), (0, 0))))
    return _unfold(y)[:, :rows, :columns]


def _fold(x: Images) -> Images:
    """Squares of 2 x 2 pixels become pixels with four times the channels."""
    batch, rows, columns, channels = x.shape
    pairs = x.reshape(batch, rows // 2, 2, columns // 2, 2, channels)
    return pairs.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows // 2, columns // 2, 4 * channels)


def _unfold(x: Images) -> Images:
    """The inverse of `_fold`."""
    batch, rows, columns, channels = x.shape
    pairs = x.reshape(batch, rows, columns, 2, 2, channels // 4)
    return pairs.transpose(0, 1, 3, 2, 4, 5).reshape(batch, 2 * rows, 2 * columns, channels // 4)


def _padded(x: Images, widths: Borders) -> Images:
    if widths == ((0, 0), (0, 0)):
        return x
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (*widths[0], 0), (*widths[1], 0), (0, 0, 0)))


def _under(x: Images, i: int, j: int, rows: int, columns: int, stride: int) -> Images:
    """The pixels under place (i, j) of the kernel, for all outputs."""
    batch, _, _, channels = x.shape
    ends = (batch, i + stride * (rows - 1) + 1, j + stride * (columns - 1) + 1, channels)
    return lax.slice(x, (0, i, j, 0), ends, (1, stride, stride, 1))


class Convolution(NamedTuple):
    """Parameters of a convolution with a bias for each output channel."""

    kernel: Kernel
    bias: Float[Array, "outputs"]

    @classmethod
    def init(
        cls, key: Key[Array, ""], size: int, channels: int, outputs: int, start: Callable[..., Any] | None = None
    ) -> "Convolution":
        """A square kernel from an initializer of JAX, by default Glorot-uniform; zero bias."""
        start = jax.nn.initializers.glorot_uniform() if start is None else start
        return cls(start(key, (size, size, channels, outputs)), jnp.zeros(outputs))

    def __call__(self, x: Images, *, stride: int = 1, padding: str = "VALID") -> Images:
        y = convolve(x, self.kernel, stride=stride, padding=padding)
        return y + self.bias[None, None, None, :]


def fan_out_normal(key: Key[Array, ""], shape: tuple[int, ...]) -> Kernel:
    r"""Normal with variance $2 / (\text{height} \cdot \text{width} \cdot \text{outputs})$ (He et al., arXiv:1502.01852)."""
    return jax.random.normal(key, shape) * math.sqrt(2 / (shape[0] * shape[1] * shape[3]))
