r"""Convolution of images `(batch, rows, columns, channels)`, in the form that is fast where it
runs.

It has three products: outputs, gradient of the image, gradient of the kernel. Each is bilinear, and
its derivatives are the other two. With examples n, stride s and zeros around the image,

$$y_{nrcq} = \sum_{ijp} x_{n,\, sr+i,\, sc+j,\, p}\, k_{ijpq}.$$

On CPUs the extension computes them, or XLA where it is not there. On GPUs cuDNN does, but for
kernels of several clients: there they are matrix products.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key

from fedax.errors import InvalidInput
from fedax.ops.extension import IMAGES, call, fold_batches, serves

Images: TypeAlias = Float[Array, "_ _ _ _"]
"""Of shape (batch, rows, columns, channels)."""
Kernel: TypeAlias = Float[Array, "_ _ _ _"]
"""Of shape (height, width, channels, outputs)."""
Borders = tuple[tuple[int, int], tuple[int, int]]
Padding: TypeAlias = str | Borders
OUTPUTS, IMAGE, KERNEL = range(3)
"""The three products, as the extension numbers them."""


class Plan(NamedTuple):
    """Sizes of image, kernel and outputs in rows and columns; steps between outputs.

    Zeros around the image.
    """

    image: tuple[int, int]
    window: tuple[int, int]
    outputs: tuple[int, int]
    strides: tuple[int, int]
    borders: Borders

    @property
    def numbers(self) -> list[int]:
        """Steps between outputs and zeros before the image, as the extension takes them."""
        return [*self.strides, self.borders[0][0], self.borders[1][0]]


def convolve(
    x: Images,
    kernel: Kernel,
    *,
    stride: int | tuple[int, int] = 1,
    padding: Padding = "VALID",
) -> Images:
    r"""Computes $y_{rcq} = \sum_{ijp} x_{sr+i,\, tc+j,\, p}\, k_{ijpq}$, the convolution of neural
    networks, with strides s and t.

    It has reverse-mode derivatives of any order, and works under `jit`, `vmap` and `scan`.

    Args:
        x: images of shape (batch, rows, columns, channels), of one floating-point type with the
            kernel.
        kernel: of shape (height, width, channels, outputs).
        stride: at least 1, for rows and columns alike or for each.
        padding: "VALID" places the kernel inside the image only; "SAME" adds zeros around it, so
            that there are ceil(rows / stride) rows of outputs; ((top, bottom), (left, right)) adds
            so many zeros, at least 0 each.

    Raises:
        InvalidInput: another padding or stride, shapes or types that do not fit, or an image
            smaller than the kernel.

    >>> convolve(jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 5))).shape
    (1, 2, 2, 5)
    """
    plan = make_plan(x, kernel, stride, padding)
    if jax.default_backend() == "cpu" and not serves(x, kernel):
        return _convolve_by_xla(x, kernel, plan)
    return outputs(x, kernel, plan)


def make_plan(x: Images, kernel: Kernel, stride: int | tuple[int, int], padding: Padding) -> Plan:
    """Returns the sizes of a convolution.

    Raises:
        InvalidInput: as `convolve`.
    """
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[3] != kernel.shape[2] or x.dtype != kernel.dtype:
        got = (x.shape, str(x.dtype), kernel.shape, str(kernel.dtype))
        raise InvalidInput.of(
            "convolve(x, kernel)", got, "four axes each, and the same channels and type"
        )
    strides = as_pair(stride)
    sizes = (x.shape[1], x.shape[2]), (kernel.shape[0], kernel.shape[1])
    border_widths = borders(*sizes, strides, padding)
    rows, columns = (
        (n + sum(b) - k) // s + 1 for n, b, k, s in zip(sizes[0], border_widths, sizes[1], strides)
    )
    return Plan(*sizes, (rows, columns), strides, border_widths)


def as_pair(size: int | np.integer | tuple[int, int]) -> tuple[int, int]:
    """Returns the numbers for rows and columns, which may be one number, also of NumPy.

    >>> as_pair(np.int64(2)), as_pair((1, 2))
    ((2, 2), (1, 2))
    """
    rows, columns = map(operator.index, np.broadcast_to(size, 2))
    return rows, columns


def borders(
    image: tuple[int, int], kernel: tuple[int, int], strides: tuple[int, int], padding: Padding
) -> Borders:
    """Returns the zeros before and after rows and columns.

    For "SAME" the larger part of an odd number comes after.
    """
    fits = (
        padding in ("SAME", "VALID")
        if isinstance(padding, str)
        else min(min(pair) for pair in padding) >= 0
    )
    if not fits or min(strides) < 1:
        allowed = "'SAME', 'VALID' or numbers >= 0, and strides >= 1"
        raise InvalidInput.of("convolve(padding, stride)", (padding, strides), allowed)
    if padding == "SAME":
        # as many zeros as the last of ceil(n / s) windows reaches beyond the image
        added = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(image, kernel, strides)]
        return (added[0] // 2, added[0] - added[0] // 2), (added[1] // 2, added[1] - added[1] // 2)
    widths = ((0, 0), (0, 0)) if isinstance(padding, str) else padding
    if min(n + sum(pair) - k for n, pair, k in zip(image, widths, kernel)) < 0:
        raise InvalidInput.of(
            "convolve(x=...)", image, f"images of at least {kernel[0]} x {kernel[1]}"
        )
    return widths


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def outputs(x: Images, kernel: Kernel, plan: Plan) -> Images:
    """Returns the outputs for images and a kernel."""
    return _multiply(OUTPUTS, x, kernel, plan)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def image_gradient(gradient: Images, kernel: Kernel, plan: Plan) -> Images:
    """Returns the gradient of the images, for the gradient of the outputs and a kernel."""
    return _multiply(IMAGE, gradient, kernel, plan)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def kernel_gradient(x: Images, gradient: Images, plan: Plan) -> Kernel:
    """Returns the gradient of the kernel, for images and the gradient of the outputs."""
    return _multiply(KERNEL, x, gradient, plan)


def bilinear(product: Any, first: Callable[..., Any], second: Callable[..., Any]) -> None:
    """Sets the derivatives of a product that is linear in both operands.

    Args:
        product: made by `jax.custom_vjp`, of two operands and static arguments.
        first: the gradient of the first operand, of the result's gradient and the second operand.
        second: the gradient of the second operand, of the first one and the result's gradient.
    """

    def forward(a: Any, b: Any, *static: Any) -> Any:
        return product(a, b, *static), (a, b)

    def backward(*arguments: Any) -> Any:
        *static, (a, b), gradient = arguments
        return first(gradient, b, *static), second(a, gradient, *static)

    product.defvjp(forward, backward)


bilinear(outputs, image_gradient, kernel_gradient)
bilinear(image_gradient, outputs, lambda dy, dx, plan: kernel_gradient(dx, dy, plan))
bilinear(kernel_gradient, lambda dk, dy, plan: image_gradient(dy, dk, plan), outputs)


def _multiply(kind: int, a: Any, b: Any, plan: Plan) -> Any:
    if serves(a, b):
        plain = by_member = functools.partial(_call_extension, kind, plan)
    else:
        plain = functools.partial(_apply, kind, _convolve_by_xla, plan)
        by_member = functools.partial(_apply, kind, _convolve_by_patches, plan)
    axes, result_axis = ((0, 0), None) if kind == KERNEL else ((0, None), 0)
    return fold_batches(plain, by_member, axes, (result_axis,))(a, b)[0]


def shape_of(kind: int, plan: Plan, a: Any, b: Any) -> tuple[int, ...]:
    """Returns the shape of a product."""
    return (
        (a.shape[0], *plan.outputs, b.shape[3]),
        (a.shape[0], *plan.image, b.shape[2]),
        (*plan.window, a.shape[3], b.shape[3]),
    )[kind]


def _call_extension(kind: int, plan: Plan, a: Any, b: Any) -> Any:
    layouts = (IMAGES, IMAGES) if kind == KERNEL else (IMAGES, None)
    shape = shape_of(kind, plan, a, b)
    result_layout = None if kind == KERNEL else IMAGES
    return call("fedax_convolve", [kind, *plan.numbers], (a, b), layouts, [shape], [result_layout])


def _apply(kind: int, convolution: Callable[..., Any], plan: Plan, a: Any, b: Any) -> list[Any]:
    """Computes one of the products by a convolution or its transposes."""
    if kind == OUTPUTS:
        return [convolution(a, b, plan)]
    unknown = jax.ShapeDtypeStruct(shape_of(kind, plan, a, b), a.dtype)
    if kind == IMAGE:
        return list(jax.linear_transpose(lambda x: convolution(x, b, plan), unknown)(a))
    return list(jax.linear_transpose(lambda kernel: convolution(a, kernel, plan), unknown)(b))


def _convolve_by_xla(x: Images, kernel: Kernel, plan: Plan) -> Images:
    return lax.conv_general_dilated(
        x, kernel, plan.strides, plan.borders, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _convolve_by_patches(x: Images, kernel: Kernel, plan: Plan) -> Images:
    """Multiplies what each output sees by the kernel: one matrix product for each client.

    cuDNN is slow where every client has a kernel of its own.
    """
    padded = jnp.pad(x, ((0, 0), *plan.borders, (0, 0)))
    height, width, channels, outputs = kernel.shape
    rows, columns = plan.outputs
    down, across = plan.strides
    pixels = [
        padded[:, i : i + down * (rows - 1) + 1 : down, j : j + across * (columns - 1) + 1 : across]
        for i in range(height)
        for j in range(width)
    ]
    # (batch, rows, columns, height x width x channels)
    patches = jnp.concatenate(pixels, 3)
    return patches @ kernel.reshape(height * width * channels, outputs)


def lay_images(x: Images) -> Images:
    """Returns the same images in the extension's memory order.

    Called once, before the first layer, where XLA would copy number by number.

    >>> lay_images(jnp.ones((2, 3, 3, 1))).shape
    (2, 3, 3, 1)
    """
    return _lay(x) if serves(x) else x


@jax.custom_vjp
def _lay(x: Images) -> Images:
    def run(x: Images) -> Any:
        return call("fedax_lay", [0], [x], [None], [x.shape], [IMAGES])

    return fold_batches(run, run, (0,), (0,))(x)[0]


_lay.defvjp(lambda x: (_lay(x), None), lambda _, gradient: (gradient,))


class Convolution(NamedTuple):
    """Parameters of a convolution with a bias for each output channel."""

    kernel: Kernel
    bias: Float[Array, "outputs"]

    @classmethod
    def init(
        cls,
        key: Key[Array, ""],
        size: int,
        channels: int,
        outputs: int,
        start: Callable[..., Any],
    ) -> "Convolution":
        """Initializes a square kernel by an initializer of JAX, and a zero bias."""
        return cls(start(key, (size, size, channels, outputs)), jnp.zeros(outputs))


def fan_out_normal(key: Key[Array, ""], shape: tuple[int, ...]) -> Kernel:
    r"""Draws normally with variance $2 / (\text{height} \cdot \text{width} \cdot \text{outputs})$
    (He et al., arXiv:1502.01852).
    """
    return jax.random.normal(key, shape) * math.sqrt(2 / (shape[0] * shape[1] * shape[3]))
