"""The products of a convolution in JAX, in the form that is fast on a CPU where there is no
extension.

XLA's CPU compiler does well for the forward product of many channels only; inside a loop its
gradient by the kernel is up to sixty times slower than the arithmetic. There, the three products
are written out.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Images = Float[Array, "_ _ _ _"]
Kernel = Float[Array, "_ _ _ _"]
Borders = tuple[tuple[int, int], tuple[int, int]]
NONE: Borders = ((0, 0), (0, 0))

FEW = 16
"""Below so many channels a product over channels alone leaves most of a CPU's vector unit idle."""


def _convolve(
    x: Images, kernel: Kernel, strides: tuple[int, int] = (1, 1), borders: Borders = NONE
) -> Images:
    return lax.conv_general_dilated(
        x, kernel, strides, borders, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def outputs(x: Images, kernel: Kernel, plan: Any) -> Images:
    """Returns the outputs for an image and a kernel."""
    if 1 < x.shape[3] <= 4 and plan.strides == (1, 1):
        return _convolve_in_blocks(x, kernel, plan.borders)
    return _convolve(x, kernel, plan.strides, plan.borders)


def kernel_gradient(x: Images, gradient: Images, plan: Any) -> Kernel:
    """Returns the gradient of the kernel, for an image and the gradient of the outputs."""
    padded, kernel = _pad(x, plan.borders), (*plan.window, x.shape[3], gradient.shape[3])
    if kernel[2] < FEW and plan.strides == (1, 1):
        return _kernel_gradient_by_spans(padded, kernel, gradient)
    return _kernel_gradient_by_positions(padded, kernel, plan.strides, gradient)


def _kernel_gradient_by_spans(padded: Images, kernel: tuple[int, ...], gradient: Images) -> Kernel:
    """Computes, for stride 1 with few channels, one product for each row of the kernel over spans
    of neighbouring columns.

    A span of outputs meets all the pixels that any of its columns sees. The product of the two
    holds what each place of the kernel gets along its diagonals, and beside them terms that are not
    used, which cost less than short products do.
    """
    height, width, channels, outputs = kernel
    batch, rows, columns, _ = gradient.shape
    # outputs of a row that one product computes side by side
    span = min(columns, width + 2)
    spans = -(-columns // span)
    widths = ((0, 0), (0, 0), (0, spans * span - columns), (0, 0))
    # (batch x rows x spans, span x outputs)
    gradients = jnp.pad(gradient, widths).reshape(-1, span * outputs)
    pixels = jnp.pad(padded, widths).reshape(batch, padded.shape[1], -1)
    step, length = span * channels, (span + width - 1) * channels
    # (batch, rows, spans, length): the pixels that each span sees, channels innermost
    pixels = jnp.stack([pixels[:, :, k * step : k * step + length] for k in range(spans)], 2)

    def product_of_row(i: int) -> Array:
        product = pixels[:, i : i + rows].reshape(-1, length).T @ gradients
        blocks = product.reshape(span + width - 1, channels, span, outputs)
        # output t of a span sees its pixels t to t + width - 1
        diagonal = [blocks[t : t + width, :, t] for t in range(span)]
        return sum(diagonal[1:], diagonal[0])

    return jnp.stack([product_of_row(i) for i in range(height)])


def _kernel_gradient_by_positions(
    padded: Images, kernel: tuple[int, ...], strides: tuple[int, int], gradient: Images
) -> Kernel:
    """Computes one product for each kernel position: the image under it times the gradient, over
    all pixels at once.
    """
    rows, columns = gradient.shape[1:3]
    gradients = gradient.reshape(-1, kernel[3])

    def product_at(i: int, j: int) -> Array:
        pixels = _pixels_under(padded, i, j, rows, columns, strides)
        return pixels.reshape(-1, kernel[2]).T @ gradients

    return jnp.stack(
        [product_at(i, j) for i in range(kernel[0]) for j in range(kernel[1])]
    ).reshape(kernel)


def image_gradient(gradient: Images, kernel: Kernel, plan: Any) -> Images:
    """Returns the gradient of the image, for the gradient of the outputs and a kernel."""
    if plan.strides == (1, 1) and kernel.shape[2] >= FEW:
        return _image_gradient_by_flipped_kernel(gradient, kernel, plan)
    return _image_gradient_by_adding(gradient, kernel, plan)


def _image_gradient_by_flipped_kernel(gradient: Images, kernel: Kernel, plan: Any) -> Images:
    """Computes, for stride 1, a convolution of the gradient in the order of axes for which XLA has
    a fast one.
    """
    # zeros that give a result of the image's size; negative ones cut
    widths = [
        (k - 1 - low, n + low - m)
        for k, n, m, (low, _) in zip(plan.window, plan.image, plan.outputs, plan.borders)
    ]
    # turned by 180 degrees, with channels and outputs exchanged
    flipped = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    return _convolve(_pad(gradient, (widths[0], widths[1])), flipped)


def _image_gradient_by_adding(gradient: Images, kernel: Kernel, plan: Any) -> Images:
    """Computes one product for all kernel positions and adds the results at their pixels."""
    height, width, channels, outputs = kernel.shape
    (top, bottom), (left, right) = plan.borders
    batch, rows, columns, _ = gradient.shape
    # what each output sends to every kernel position and channel
    contributions = gradient.reshape(-1, outputs) @ kernel.transpose(3, 0, 1, 2).reshape(
        outputs, -1
    )
    contributions = contributions.reshape(batch, rows, columns, height, width, channels)
    (down, across), (tall, wide) = plan.strides, plan.image
    total = jnp.zeros((batch, tall + top + bottom, wide + left + right, channels), gradient.dtype)
    for i in range(height):
        for j in range(width):
            # the pixels under position (i, j), one for each output
            total = total.at[:, i : i + down * rows : down, j : j + across * columns : across].add(
                contributions[:, :, :, i, j]
            )
    # without the borders
    return total[:, top : top + tall, left : left + wide]


def _convolve_in_blocks(x: Images, kernel: Kernel, borders: Borders) -> Images:
    """Computes, for stride 1 with few channels, 2 x 2 outputs at a time by one product over 2 x 2
    times the channels.

    The kernel of a block holds the given one at four places; its zeros cost less than short
    products do.
    """
    (top, bottom), (left, right) = borders
    height, width, channels, outputs = kernel.shape
    rows, columns = x.shape[1] + top + bottom - height + 1, x.shape[2] + left + right - width + 1
    # blocks that the shifted kernel spans
    tall, wide = -(-(height + 1) // 2), -(-(width + 1) // 2)
    # zeros behind the image, up to the last block that is needed
    ends = [
        2 * (-(-n // 2) + taps - 1) - size
        for n, taps, size in ((rows, tall, x.shape[1]), (columns, wide, x.shape[2]))
    ]
    folded = _fold(_pad(x, ((top, ends[0] - top), (left, ends[1] - left))))
    # for each output of a block, the kernel shifted to its place
    shifted = [
        jnp.pad(kernel, ((p, 2 * tall - height - p), (q, 2 * wide - width - q), (0, 0), (0, 0)))
        for p in (0, 1)
        for q in (0, 1)
    ]
    block = jnp.stack(shifted, 3).reshape(tall, 2, wide, 2, channels, 4 * outputs)
    block = block.transpose(0, 2, 1, 3, 4, 5).reshape(tall, wide, 4 * channels, 4 * outputs)
    y = _convolve(folded, block)
    # odd sizes leave a row or column too many
    return _unfold(y)[:, :rows, :columns]


def _fold(x: Images) -> Images:
    """Turns squares of 2 x 2 pixels into pixels with four times the channels."""
    batch, rows, columns, channels = x.shape
    pairs = x.reshape(batch, rows // 2, 2, columns // 2, 2, channels)
    return pairs.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows // 2, columns // 2, 4 * channels)


def _unfold(x: Images) -> Images:
    """Inverts `_fold`."""
    batch, rows, columns, channels = x.shape
    pairs = x.reshape(batch, rows, columns, 2, 2, channels // 4)
    return pairs.transpose(0, 1, 3, 2, 4, 5).reshape(batch, 2 * rows, 2 * columns, channels // 4)


def _pad(x: Images, widths: Borders) -> Images:
    if widths == NONE:
        return x
    return lax.pad(
        x, jnp.zeros((), x.dtype), ((0, 0, 0), (*widths[0], 0), (*widths[1], 0), (0, 0, 0))
    )


def _pixels_under(
    x: Images, i: int, j: int, rows: int, columns: int, strides: tuple[int, int]
) -> Images:
    """Returns the pixels under position (i, j) of the kernel, for all outputs."""
    batch, _, _, channels = x.shape
    ends = (batch, i + strides[0] * (rows - 1) + 1, j + strides[1] * (columns - 1) + 1, channels)
    return lax.slice(x, (0, i, j, 0), ends, (1, *strides, 1))
