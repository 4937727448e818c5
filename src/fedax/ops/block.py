r"""A convolution with what follows it in most networks: a bias, ReLU, and the largest of each
window.

Behind pooling the gradient of the outputs is one number for each window, at the pixel that won it.
In the extension the two gradients of the convolution read those numbers and their winners; the
gradient of all outputs, most of it zeros, is not written. With P the choice of the winners, the
tangent is $P(x * k)$, bilinear in x and k.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.errors import InvalidInput
from fedax.ops import conv
from fedax.ops.conv import Images, Kernel, Padding, Plan, as_pair, convolve, make_plan, shape_of
from fedax.ops.extension import IMAGES, call, fold_batches, serves

FLAT = 255
"""Marks an output where ReLU is flat."""
Window = tuple[int, int]


def convolve_activate(
    x: Images,
    kernel: Kernel,
    bias: Float[Array, "outputs"],
    window: int | Window = 1,
    *,
    stride: int | tuple[int, int] = 1,
    padding: Padding = "VALID",
) -> Images:
    """Computes `activate(convolve(x, kernel, stride, padding), bias, window)`, with gradients from
    the windows' largest pixels.

    Raises:
        InvalidInput: what `convolve` and `activate` refuse.

    >>> convolve_activate(jnp.ones((1, 6, 6, 2)), jnp.ones((3, 3, 2, 5)), jnp.zeros(5), 2).shape
    (1, 2, 2, 5)
    """
    if not serves(x, kernel, bias):
        return activate(convolve(x, kernel, stride=stride, padding=padding), bias, window)
    plan = make_plan(x, kernel, stride, padding)
    return _block(x, kernel, bias, plan, check_window(window))[0]


def max_pool(x: Images, window: int | Window = 2) -> Images:
    """Returns the largest of every 2 x 2 pixels, or of other windows.

    Rows and columns that fill no window are left out.

    Of equal pixels the first in reading order receives the gradient.

    Args:
        x: images of shape (batch, rows, columns, channels).
        window: its rows and columns, at least 1 and no more than 250 pixels together.

    Raises:
        InvalidInput: another window.

    >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    largest, *others = _window_pixels(x, check_window(window))
    for pixels in others:
        # what is not a number wins
        largest = jnp.where((pixels > largest) | jnp.isnan(pixels), pixels, largest)
    return largest


def activate(x: Images, bias: Float[Array, "channels"], window: int | Window = 1) -> Images:
    """Adds a bias to each channel, applies ReLU, and takes the largest of each window as `max_pool`
    does.

    >>> activate(
    ...     jnp.array([[1.0, -4.0], [3.0, -9.0]]).reshape(1, 2, 1, 2), jnp.array([0.5, 2.0]), (2, 1)
    ... ).ravel().tolist()
    [3.5, 0.0]
    """
    return jax.nn.relu(max_pool(x, window) + bias[None, None, None, :])


def check_window(window: int | Window) -> Window:
    """Returns rows and columns of a window that may be given by one number.

    Raises:
        InvalidInput: less than 1, or too many pixels for the type of the winners.
    """
    window = as_pair(window)
    if min(window) < 1 or window[0] * window[1] > 250:
        raise InvalidInput.of(
            "max_pool(window=...)", window, "at least 1, and no more than 250 pixels together"
        )
    return window


def _window_pixels(x: Images, window: Window) -> list[Images]:
    """Returns the first pixel of every window, the second one, and so on."""
    height, width = window
    # rows and columns that fill no window are cut off
    cropped = x[:, : x.shape[1] // height * height, : x.shape[2] // width * width]
    return [cropped[:, i::height, j::width] for i in range(height) for j in range(width)]


_differentiable: Any = functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))


@_differentiable
def _block(
    x: Images, kernel: Kernel, bias: Float[Array, "outputs"], plan: Plan, window: Window
) -> tuple[Images, Any]:
    """Returns the outputs and their winners, as numbers of pixels in the windows."""

    def run(x: Any, kernel: Any, bias: Any) -> Any:
        rows, columns = (n // w for n, w in zip(plan.outputs, window))
        shape = (x.shape[0], rows, columns, kernel.shape[3])
        return call(
            "fedax_convolve",
            _numbers(conv.OUTPUTS, plan, window),
            (x, kernel, bias),
            (IMAGES, None, None),
            (shape, shape),
            (IMAGES, IMAGES),
            (x.dtype, jnp.uint8),
        )

    outputs, winner = fold_batches(run, run, (0, None, None), (0, 0))(x, kernel, bias)
    return outputs, winner


@_differentiable
def _image_gradient(
    gradient: Images, kernel: Kernel, winner: Any, plan: Plan, window: Window
) -> Images:
    def run(gradient: Any, kernel: Any, winner: Any) -> Any:
        return call(
            "fedax_convolve",
            _numbers(conv.IMAGE, plan, window),
            (gradient, kernel, winner),
            (IMAGES, None, IMAGES),
            [shape_of(conv.IMAGE, plan, gradient, kernel)],
            [IMAGES],
        )

    return fold_batches(run, run, (0, None, 0), (0,))(gradient, kernel, winner)[0]


@_differentiable
def _kernel_gradient(
    x: Images, gradient: Images, winner: Any, plan: Plan, window: Window
) -> tuple[Kernel, Float[Array, "outputs"]]:
    """Returns the gradients of the kernel and of the bias."""
    kernel_gradient, bias_gradient = call(
        "fedax_convolve",
        _numbers(conv.KERNEL, plan, window),
        (x, gradient, winner),
        (IMAGES, IMAGES, IMAGES),
        (shape_of(conv.KERNEL, plan, x, gradient), gradient.shape[3:]),
        (None, None),
    )
    return kernel_gradient, bias_gradient


def _numbers(kind: int, plan: Plan, window: Window) -> list[int]:
    return [kind, *plan.numbers, *window, *plan.outputs]


def _tangent(x: Images, kernel: Kernel, winner: Any, plan: Plan, window: Window) -> Images:
    """Returns the winners among the outputs of a convolution, zeros where ReLU is flat."""
    pixels = _window_pixels(conv.outputs(x, kernel, plan), window)
    return sum(jnp.where(winner == k, values, 0) for k, values in enumerate(pixels))  # type: ignore[return-value]


def _block_forward(x: Any, kernel: Any, bias: Any, plan: Plan, window: Window) -> Any:
    outputs, winner = _block(x, kernel, bias, plan, window)
    return (outputs, winner), (x, kernel, winner)


def _block_backward(plan: Plan, window: Window, saved: Any, gradients: Any) -> Any:
    x, kernel, winner = saved
    # winners are whole numbers, without a gradient
    gradient = gradients[0]
    of_kernel, of_bias = _kernel_gradient(x, gradient, winner, plan, window)
    return _image_gradient(gradient, kernel, winner, plan, window), of_kernel, of_bias


def _image_gradient_backward(plan: Plan, window: Window, saved: Any, image: Any) -> Any:
    gradient, kernel, winner = saved
    of_kernel, _ = _kernel_gradient(image, gradient, winner, plan, window)
    return _tangent(image, kernel, winner, plan, window), of_kernel, None


def _kernel_gradient_backward(plan: Plan, window: Window, saved: Any, gradients: Any) -> Any:
    x, gradient, winner = saved
    kernel, bias = gradients
    of_gradient = _tangent(x, kernel, winner, plan, window)
    # a bias moves nothing where ReLU is flat
    of_gradient += jnp.where(winner == FLAT, 0, bias[None, None, None, :])
    return _image_gradient(gradient, kernel, winner, plan, window), of_gradient, None


def _saving(function: Any) -> Any:
    """Returns a function that also returns the operands before the plan and the window."""
    return lambda *operands: (function(*operands), operands[:3])


_block.defvjp(_block_forward, _block_backward)
_image_gradient.defvjp(_saving(_image_gradient), _image_gradient_backward)
_kernel_gradient.defvjp(_saving(_kernel_gradient), _kernel_gradient_backward)
