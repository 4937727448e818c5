r"""The product of examples with the kernel of a fully connected layer, $y_{no} = \sum_k x_{nk} w_{ko}$.

The extension has it and the gradient by the kernel, $\sum_n x_{nk} g_{no}$, and skips the zeros of x where they are many: pixels
of a plain background, units that ReLU has cut off. No bit depends on that. The gradient by the examples is XLA's.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import batching
from jaxtyping import Array, Float

from fedax.models.layers.bilinear import bilinear
from fedax.models.layers.extension import status
from fedax.models.layers.primitives import Result, aligned, batch_groups, batch_size, choose, folded, primitive, unfolded

LEAST_PRODUCTS, NARROWEST, LARGEST = 1 << 18, 16, 1 << 20
"""The extension is asked from so many multiplications and outputs on, below which the call and the vectors' ends cost more, and up
to a kernel of so many numbers, beyond which all wait for memory."""


def product(x: Float[Array, "batch inputs"], kernel: Float[Array, "inputs outputs"]) -> Float[Array, "batch outputs"]:
    """X kernel, in the form that is fast where it runs.

    >>> product(jnp.ones((2, 3)), jnp.ones((3, 4))).tolist()
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """
    worth = kernel.shape[1] >= NARROWEST and kernel.size <= LARGEST and x.shape[0] * kernel.size >= LEAST_PRODUCTS
    # with narrow vectors XLA's product is faster
    if worth and choose(x, kernel) and status().level != "plain":
        return outputs_p.bind(*aligned(x[None], kernel[None]), native=True)[0][0]
    # kernel' x' and not x kernel: the kernel's gradient then comes out in its own order if many models share the examples
    return lax.dot_general(kernel, x, (((0,), (1,)), ((), ()))).T


def multiplications(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Of either product, for the shapes of its operands."""
    return math.prod(a) * b[2]


def _outputs(x: Any, kernel: Any) -> list[Any]:
    return [jnp.einsum("gnk,gko->gno", x, kernel)]


def _kernel_gradient(x: Any, gradient: Any) -> list[Any]:
    return [jnp.einsum("gnk,gno->gko", x, gradient)]


def _made(name: str, kind: int, plain: Any) -> Any:
    def results(a: Any, b: Any, **_: Any) -> list[Result]:
        return [Result((a.shape[0], a.shape[1 + kind], b.shape[2]), a.dtype, False)]

    return primitive(name, results, plain, ("fedax_affine", lambda *_, **__: [kind]), (False, False))


outputs_p = _made("fedax_affine_outputs", 0, _outputs)
kernel_gradient_p = _made("fedax_affine_kernel_gradient", 1, _kernel_gradient)

PRODUCTS = (outputs_p.name, kernel_gradient_p.name)
"""Their names in traced programs."""

bilinear(
    outputs_p,
    lambda dy, kernel, _: jnp.einsum("gno,gko->gnk", dy, kernel),
    lambda dy, x, params: kernel_gradient_p.bind(x, dy, **params)[0],
)
bilinear(
    kernel_gradient_p,
    lambda dk, gradient, _: jnp.einsum("gko,gno->gnk", dk, gradient),
    lambda dk, x, params: outputs_p.bind(x, dk, **params)[0],
)


def _outputs_batch(operands: Any, dims: Any, **params: Any) -> Any:
    if dims[1] is None:
        (out,) = outputs_p.bind(folded(operands[0], dims[0], 1), operands[1], **params)
        return [unfolded(out, batch_size(operands, dims), 1)], [1]
    return _groups_or_plain(outputs_p, _outputs, operands, dims, params)


def _kernel_gradient_batch(operands: Any, dims: Any, **params: Any) -> Any:
    return _groups_or_plain(kernel_gradient_p, _kernel_gradient, operands, dims, params)


def _groups_or_plain(made: Any, plain: Any, operands: Any, dims: Any, params: Any) -> Any:
    """Groups where both operands have the batch; otherwise XLA's product, which needs no copies of the other one."""
    if None not in dims:
        return batch_groups(made, operands, dims, params)
    return jax.vmap(plain, tuple(dims))(*operands), [0]


batching.primitive_batchers[outputs_p] = _outputs_batch
batching.primitive_batchers[kernel_gradient_p] = _kernel_gradient_batch
