r"""The product of examples with the kernel of a fully connected layer,
$y_{no} = \sum_k x_{nk} w_{ko}$.

The extension has it, the gradient by the kernel, $\sum_n x_{nk} g_{no}$, and the gradient by the
examples, $\sum_o g_{no} w_{ko}$, and skips the zeros of their first operand where they are many:
pixels of a plain background, units that ReLU has cut off. No bit depends on that.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedax.ops.bilinear import bilinear
from fedax.ops.extension import status
from fedax.ops.primitives import (
    Result,
    aligned,
    batch_groups,
    batch_size,
    choose,
    fold_batch,
    primitive,
    unfold_batch,
)
from fedax.utils.jax_internals import batching

LEAST_PRODUCTS, LEAST_NARROW, NARROWEST, LARGEST = 1 << 18, 1 << 15, 16, 1 << 22
"""The extension is asked from so many multiplications on, fewer of layers with few outputs, below
which the call costs more; for rows of so many numbers, below which the vectors' ends do; and up to
a kernel of so many, beyond which all wait for memory."""


def product(
    x: Float[Array, "batch inputs"], kernel: Float[Array, "inputs outputs"]
) -> Float[Array, "batch outputs"]:
    """Multiplies X by the kernel, in the form that is fast where it runs.

    >>> product(jnp.ones((2, 3)), jnp.ones((3, 4))).tolist()
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """
    # all operations here have a first axis of groups; one model is one group
    if _is_worth_a_call(x, kernel, kernel.shape[1]):
        return outputs_p.bind(*aligned(x[None], kernel[None]), native=True)[0][0]
    # kernel' x' and not x kernel: the kernel's gradient then comes out in its own order if many
    # models share the examples
    return lax.dot_general(kernel, x, (((0,), (1,)), ((), ()))).T


def product_by_rows(
    x: Float[Array, "batch inputs"], kernel: Float[Array, "outputs inputs"]
) -> Float[Array, "batch outputs"]:
    """Multiplies X by a kernel that holds a row for each output, as PyTorch has it, like `product`.

    >>> product_by_rows(jnp.ones((2, 3)), jnp.ones((4, 3))).shape
    (2, 4)
    """
    if _is_worth_a_call(x, kernel, kernel.shape[0]):
        # sum_k x_nk w_ok has the form of the gradient by the examples
        return input_gradient_p.bind(*aligned(x[None], kernel[None]), native=True)[0][0]
    return lax.dot_general(kernel, x, (((1,), (1,)), ((), ()))).T


def _is_worth_a_call(x: Any, kernel: Any, outputs: int) -> bool:
    """Returns whether the extension is faster; with narrow vectors XLA's product is."""
    least = LEAST_PRODUCTS if outputs >= NARROWEST else LEAST_NARROW
    is_large_enough = (
        max(kernel.shape) >= NARROWEST
        and kernel.size <= LARGEST
        and x.shape[0] * kernel.size >= least
    )
    return is_large_enough and choose(x, kernel) and status().level != "plain"


def _outputs(x: Any, kernel: Any) -> list[Any]:
    return [jnp.einsum("gnk,gko->gno", x, kernel)]


def _kernel_gradient(x: Any, gradient: Any) -> list[Any]:
    return [jnp.einsum("gnk,gno->gko", x, gradient)]


def _input_gradient(gradient: Any, kernel: Any) -> list[Any]:
    return [jnp.einsum("gno,gko->gnk", gradient, kernel)]


def _make_primitive(name: str, kind: int, plain: Any) -> Any:
    def results(a: Any, b: Any, **_: Any) -> list[Result]:
        # (groups, rows, columns) of the three products in turn
        return [Result((a.shape[0], a.shape[1 + kind % 2], b.shape[2 - kind // 2]), a.dtype, False)]

    def numbers(a: Any, b: Any) -> list[int] | None:
        # of the operands and the result, what lies in vectors
        rows = (b[2], b[2], min(b[1:]))[kind]
        return [kind] if rows >= NARROWEST else None

    return primitive(name, results, plain, ("fedax_affine", numbers), (False, False))


outputs_p = _make_primitive("fedax_affine_outputs", 0, _outputs)
kernel_gradient_p = _make_primitive("fedax_affine_kernel_gradient", 1, _kernel_gradient)
input_gradient_p = _make_primitive("fedax_affine_input_gradient", 2, _input_gradient)

PRODUCTS = (outputs_p.name, kernel_gradient_p.name, input_gradient_p.name)
"""Their names in traced programs."""


def _gradient_by_kernel(x: Any, gradient: Any, params: Any) -> Any:
    """Computes the kernel's gradient.

    With few outputs transposed, so that the inputs fill vector registers.
    """
    if gradient.shape[2] < NARROWEST <= x.shape[2]:
        return kernel_gradient_p.bind(gradient, x, **params)[0].swapaxes(1, 2)
    return kernel_gradient_p.bind(x, gradient, **params)[0]


def _gradient_by_examples(gradient: Any, kernel: Any, params: Any) -> Any:
    """Computes the examples' gradient; with few outputs by the transposed kernel."""
    if gradient.shape[2] < NARROWEST <= kernel.shape[1]:
        return outputs_p.bind(gradient, kernel.swapaxes(1, 2), **params)[0]
    return input_gradient_p.bind(gradient, kernel, **params)[0]


bilinear(
    outputs_p,
    _gradient_by_examples,
    lambda dy, x, params: _gradient_by_kernel(x, dy, params),
)
bilinear(
    kernel_gradient_p,
    lambda dk, gradient, params: _gradient_by_examples(gradient, dk, params),
    lambda dk, x, params: outputs_p.bind(x, dk, **params)[0],
)
bilinear(
    input_gradient_p,
    lambda dx, kernel, params: outputs_p.bind(dx, kernel, **params)[0],
    lambda dx, gradient, params: _gradient_by_kernel(dx, gradient, params),
)


def _register_batching(operation: Any, plain: Any, examples: bool) -> None:
    """Registers: more examples, if only the operand that has them is batched and the result has
    them; otherwise groups where both operands have the batch, and XLA's product where one has it,
    which needs no copies of the other one.
    """

    def rule(operands: Any, dims: Any, **params: Any) -> Any:
        # the kernel is shared: the batch joins the examples
        if examples and dims[1] is None:
            (out,) = operation.bind(fold_batch(operands[0], dims[0], 1), operands[1], **params)
            return [unfold_batch(out, batch_size(operands, dims), 1)], [1]
        if None not in dims:
            return batch_groups(operation, operands, dims, params)
        return jax.vmap(plain, tuple(dims))(*operands), [0]

    batching.primitive_batchers[operation] = rule


_register_batching(outputs_p, _outputs, True)
_register_batching(kernel_gradient_p, _kernel_gradient, False)
_register_batching(input_gradient_p, _input_gradient, True)
