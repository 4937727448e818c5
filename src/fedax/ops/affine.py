r"""The product of examples with the kernel of a fully connected layer,
$y_{no} = \sum_k x_{nk} w_{ko}$.

The extension has it, the gradient by the kernel, $\sum_n x_{nk} g_{no}$, and the gradient by the
examples, $\sum_o g_{no} w_{ko}$, and skips the zeros of their first operand where they are many:
pixels of a plain background, units that ReLU has cut off. No bit depends on that.
"""

import functools
from typing import Any

import jax
from jax import lax
from jaxtyping import Array, Float

from fedax.ops.conv import bilinear
from fedax.ops.extension import call, derive_by, fold_batches, serves, status

LEAST_PRODUCTS = 1 << 18
LEAST_NARROW = 1 << 15
NARROWEST = 16
LARGEST = 1 << 22
"""The extension is asked from so many multiplications on, fewer of layers with few outputs, below
which the call costs more; for rows of so many numbers, below which the vectors' ends do; and up to
a kernel of so many, beyond which all wait for memory."""


def product(
    x: Float[Array, "batch inputs"], kernel: Float[Array, "inputs outputs"]
) -> Float[Array, "batch outputs"]:
    """Multiplies X by the kernel, in the form that is fast where it runs.

    >>> import jax.numpy as jnp
    >>> product(jnp.ones((2, 3)), jnp.ones((3, 4))).tolist()
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """
    if _is_worth_a_call(x, kernel, kernel.shape[1]):
        return outputs(x, kernel)
    # kernel' x' and not x kernel: the kernel's gradient then comes out in its own order if many
    # models share the examples
    return lax.dot_general(kernel, x, (((0,), (1,)), ((), ()))).T


def product_by_rows(
    x: Float[Array, "batch inputs"], kernel: Float[Array, "outputs inputs"]
) -> Float[Array, "batch outputs"]:
    """Multiplies X by a kernel that holds a row for each output, as PyTorch has it, like `product`.

    >>> import jax.numpy as jnp
    >>> product_by_rows(jnp.ones((2, 3)), jnp.ones((4, 3))).shape
    (2, 4)
    """
    if _is_worth_a_call(x, kernel, kernel.shape[0]):
        # sum_k x_nk w_ok has the form of the gradient by the examples
        return input_gradient(x, kernel)
    return lax.dot_general(kernel, x, (((1,), (1,)), ((), ()))).T


def _is_worth_a_call(x: Any, kernel: Any, outputs: int) -> bool:
    """Returns whether the extension is faster; with narrow vectors XLA's product is."""
    least = LEAST_PRODUCTS if outputs >= NARROWEST else LEAST_NARROW
    is_large_enough = (
        max(kernel.shape) >= NARROWEST
        and kernel.size <= LARGEST
        and x.shape[0] * kernel.size >= least
    )
    return is_large_enough and serves(x, kernel) and status().level != "plain"


@jax.custom_vjp
def outputs(
    x: Float[Array, "batch inputs"], kernel: Float[Array, "inputs outputs"]
) -> Float[Array, "batch outputs"]:
    """Returns the outputs for examples and a kernel."""
    if kernel.shape[1] < NARROWEST:
        return x @ kernel
    run = functools.partial(_call, 0)
    return fold_batches(run, run, (0, None), (0,))(x, kernel)[0]


@jax.custom_vjp
def input_gradient(
    gradient: Float[Array, "batch outputs"], kernel: Float[Array, "inputs outputs"]
) -> Float[Array, "batch inputs"]:
    """Returns the gradient of the examples, for the gradient of the outputs and a kernel."""
    if min(kernel.shape) < NARROWEST:
        return outputs(gradient, kernel.T)
    run = functools.partial(_call, 2)
    return fold_batches(run, run, (0, None), (0,))(gradient, kernel)[0]


def _kernel_gradient(x: Any, gradient: Any, *after: Any) -> Any:
    if gradient.shape[1] >= NARROWEST:
        return _call(1, x, gradient, *after)[0]
    # transposed, so that the inputs fill vector registers
    if x.shape[1] >= NARROWEST:
        return _call(1, gradient, x, *after)[0].T
    return x.T @ gradient


kernel_gradient = derive_by(_kernel_gradient, lambda x, gradient, *after: x.T @ gradient)
"""Returns the gradient of the kernel, for examples and the gradient of the outputs. Further
operands are computed before it, and not read."""


def _call(kind: int, a: Any, b: Any, *after: Any) -> Any:
    shape = a.shape[kind == 1], b.shape[kind < 2]
    operands = a, b, *after
    return call("fedax_affine", [kind], operands, [None] * len(operands), [shape], [None])


def _forward(x: Any, kernel: Any) -> Any:
    asked = () if x.perturbed else None
    return outputs(x.value, kernel.value), (x.value, kernel.value, asked)


def _backward(operands: Any, gradient: Any) -> Any:
    x, kernel, asked = operands
    by_x = input_gradient(gradient, kernel)
    # in this order, or XLA copies the kernel in every step: what is made of its gradient cannot
    # replace it before it is read
    after = () if asked is None else (by_x,)
    return by_x, kernel_gradient(x, gradient, *after)


outputs.defvjp(_forward, _backward, symbolic_zeros=True)
bilinear(input_gradient, outputs, lambda dy, dx: kernel_gradient(dx, dy))
