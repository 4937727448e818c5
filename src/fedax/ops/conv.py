"""Convolution of images `(batch, rows, columns, channels)`, in the form that is fast where it
runs.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedax.errors import InvalidInput
from fedax.ops.bilinear import Borders, PlainForm, Plan, bind_convolution
from fedax.ops.extension import status
from fedax.ops.primitives import choose

Images: TypeAlias = Float[Array, "_ _ _ _"]
"""Of shape (batch, rows, columns, channels)."""
Kernel: TypeAlias = Float[Array, "_ _ _ _"]
"""Of shape (height, width, channels, outputs)."""
Padding: TypeAlias = str | Borders

FORMULATIONS = ("native", "products", "xla")


def convolve(
    x: Images,
    kernel: Kernel,
    *,
    stride: int | tuple[int, int] = 1,
    padding: Padding = "VALID",
    formulation: str | None = None,
) -> Images:
    r"""Computes $y_{rcq} = \sum_{ijp} x_{sr+i,\, tc+j,\, p}\, k_{ijpq}$, the convolution of neural
    networks, with strides s and t.

    It has derivatives of any order and mode, and works under `jit`, `vmap`, `scan` and `shard_map`.

    Args:
        x: images of shape (batch, rows, columns, channels), of one floating-point type with the
            kernel.
        kernel: of shape (height, width, channels, outputs).
        stride: at least 1, for rows and columns alike or for each.
        padding: "VALID" places the kernel inside the image only; "SAME" adds zeros around it, so
            that there are ceil(rows / stride) rows of outputs; ((top, bottom), (left, right)) adds
            so many zeros, at least 0 each.
        formulation: "native" calls the extension of fedax on CPUs; "products" writes all in
            products that XLA runs fast on a CPU; "xla" leaves all to XLA. None: "native" on CPUs
            where the extension is there and the type is float32 or float64, "products" on other
            CPUs; elsewhere "products" where clients have kernels of their own, and else "xla".

    Raises:
        InvalidInput: another formulation or one that is not there, another padding or stride,
            shapes or types that do not fit, or an image smaller than the kernel.

    >>> convolve(jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 5))).shape
    (1, 2, 2, 5)
    """
    if formulation is not None and formulation not in FORMULATIONS:
        raise InvalidInput.of(
            "convolve(formulation=...)", formulation, "'native', 'products', 'xla' or None"
        )
    plan = make_plan(x, kernel, stride, padding)
    if formulation == "native" and not status().used:
        raise InvalidInput(f"convolve(formulation='native'): {status().reason}")
    native = choose(x, kernel, native=None if formulation is None else formulation == "native")
    return bind_convolution(x, kernel, plan, native, plain_form(formulation))


def plain_form(formulation: str | None) -> PlainForm:
    """Returns the form wherever the extension does not serve."""
    if formulation in ("products", "xla"):
        return formulation
    # cuDNN is slow with a kernel for each client
    return "products" if jax.default_backend() == "cpu" else "by_groups"


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
    strides = (stride, stride) if isinstance(stride, int) else stride
    sizes = (x.shape[1], x.shape[2]), (kernel.shape[0], kernel.shape[1])
    border_widths = borders(*sizes, strides, padding)
    rows, columns = (
        (n + sum(b) - k) // s + 1 for n, b, k, s in zip(sizes[0], border_widths, sizes[1], strides)
    )
    return Plan(*sizes, (rows, columns), strides, border_widths)


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
        start: Callable[..., Any] | None = None,
    ) -> "Convolution":
        """Initializes a square kernel by an initializer of JAX, by default Glorot-uniform, and a
        zero bias.
        """
        start = jax.nn.initializers.glorot_uniform() if start is None else start
        return cls(start(key, (size, size, channels, outputs)), jnp.zeros(outputs))

    def __call__(self, x: Images, *, stride: int = 1, padding: Padding = "VALID") -> Images:
        y = convolve(x, self.kernel, stride=stride, padding=padding)
        return y + self.bias[None, None, None, :]


def fan_out_normal(key: Key[Array, ""], shape: tuple[int, ...]) -> Kernel:
    r"""Draws normally with variance $2 / (\text{height} \cdot \text{width} \cdot \text{outputs})$
    (He et al., arXiv:1502.01852).
    """
    return jax.random.normal(key, shape) * math.sqrt(2 / (shape[0] * shape[1] * shape[3]))
