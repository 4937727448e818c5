r"""A convolution with what follows it in most networks: a bias, ReLU, and the largest of each
window.

Behind pooling the gradient of the outputs is one number for each window, at the pixel that won it.
The two gradients of the convolution read those numbers and their winners; the gradient of all
outputs, most of it zeros, is not written. With P the choice of the winners, the tangent is $P(x *
k)$, bilinear in x and k; its transposes by them are each other's, and derivatives of any order are
these three again.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.ops import bilinear, pool
from fedax.ops.bilinear import Plan, join_batches
from fedax.ops.conv import Images, Kernel, Padding, convolve, make_plan
from fedax.ops.primitives import Result, aligned, batch_by, choose, in_groups, primitive
from fedax.utils.jax_internals import ad


def convolve_activate(
    x: Images,
    kernel: Kernel,
    bias: Float[Array, "outputs"],
    window: int | tuple[int, int] = 1,
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
    if not choose(x, kernel, bias):
        return pool.activate(convolve(x, kernel, stride=stride, padding=padding), bias, window)
    size = pool.check_window(window)
    operands = aligned(x[None], kernel[None], bias[None])
    return block_p.bind(
        *operands, plan=make_plan(x, kernel, stride, padding), window=size, native=True
    )[0][0]


def _product_params(plan: Plan) -> dict[str, Any]:
    return {"plan": plan, "native": True, "plain": "xla"}


def _pooling_params(plan: Plan, window: pool.Window) -> dict[str, Any]:
    return {"size": plan.outputs, "window": window, "relu": True, "native": True}


def _block(x: Any, kernel: Any, bias: Any, *, plan: Plan, window: pool.Window) -> list[Any]:
    (outputs,) = bilinear.outputs_p.bind(x, kernel, **_product_params(plan))
    return pool.pool_p.bind(outputs, bias, **_pooling_params(plan, window))


def _outputs(x: Any, kernel: Any, winner: Any, *, plan: Plan, window: pool.Window) -> list[Any]:
    (outputs,) = bilinear.outputs_p.bind(x, kernel, **_product_params(plan))
    # no tangent of the bias: this is the convolution's alone
    zero_bias = jnp.zeros_like(outputs, shape=(outputs.shape[0], outputs.shape[4]))
    return pool.tangent_p.bind(
        *aligned(outputs, zero_bias), winner, **_pooling_params(plan, window)
    )


def _unpool(gradient: Any, winner: Any, plan: Plan, window: pool.Window) -> Any:
    return pool.gradient_p.bind(gradient, winner, **_pooling_params(plan, window))[0]


def _image_gradient(
    gradient: Any, kernel: Any, winner: Any, *, plan: Plan, window: pool.Window
) -> list[Any]:
    return bilinear.image_gradient_p.bind(
        _unpool(gradient, winner, plan, window), kernel, **_product_params(plan)
    )


def _kernel_gradient(
    x: Any, gradient: Any, winner: Any, *, plan: Plan, window: pool.Window
) -> list[Any]:
    return bilinear.kernel_gradient_p.bind(
        x, _unpool(gradient, winner, plan, window), **_product_params(plan)
    )


def _bias_gradient(gradient: Any, winner: Any) -> list[Any]:
    return [jnp.where(winner == pool.FLAT, jnp.zeros((), gradient.dtype), gradient).sum((1, 2, 3))]


def _bias_tangent(dbias: Any, winner: Any) -> list[Any]:
    return [
        jnp.where(winner == pool.FLAT, jnp.zeros((), dbias.dtype), dbias[:, None, None, None, :])
    ]


def _output_result(
    x: Any, kernel: Any, *_: Any, plan: Plan, window: pool.Window, **__: Any
) -> Result:
    rows, columns = (n // w for n, w in zip(plan.outputs, window))
    return Result((*x.shape[:2], rows, columns, kernel.shape[4]), x.dtype)


def _block_results(*operands: Any, **params: Any) -> list[Result]:
    output = _output_result(*operands, **params)
    return [output, Result(output.shape, "uint8")]


def _make_call(kind: int) -> Any:
    def numbers(*_: Any, plan: Plan, window: pool.Window) -> list[int]:
        return [kind, *plan.strides, plan.borders[0][0], plan.borders[1][0], *window, *plan.outputs]

    return ("fedax_convolve", numbers)


def _image_gradient_results(
    gradient: Any, kernel: Any, *_: Any, plan: Plan, **__: Any
) -> list[Result]:
    return [Result((*gradient.shape[:2], *plan.image, kernel.shape[3]), gradient.dtype)]


def _kernel_gradient_results(x: Any, gradient: Any, *_: Any, plan: Plan, **__: Any) -> list[Result]:
    return [Result((x.shape[0], *plan.window, x.shape[4], gradient.shape[4]), x.dtype, False)]


def _bias_gradient_results(gradient: Any, *_: Any, **__: Any) -> list[Result]:
    return [Result((gradient.shape[0], gradient.shape[4]), gradient.dtype, False)]


def _bias_tangent_results(dbias: Any, winner: Any, **_: Any) -> list[Result]:
    return [Result(winner.shape, dbias.dtype)]


block_p = primitive("fedax_block", _block_results, _block, _make_call(0), (True, False, False))
outputs_p = primitive(
    "fedax_pooled_outputs", lambda *a, **k: [_output_result(*a, **k)], _outputs, None, ()
)
image_gradient_p = primitive(
    "fedax_pooled_image_gradient",
    _image_gradient_results,
    _image_gradient,
    _make_call(1),
    (True, False, True),
)
kernel_gradient_p = primitive(
    "fedax_pooled_kernel_gradient",
    _kernel_gradient_results,
    _kernel_gradient,
    _make_call(2),
    (True, True, True),
)
bias_gradient_p = primitive(
    "fedax_bias_gradient",
    _bias_gradient_results,
    _bias_gradient,
    # operation 3 of the pooling, with a window of 1 x 1 and ReLU
    ("fedax_pool", lambda *_: [3, 1, 1, 1]),
    (True, True),
)
bias_tangent_p = primitive("fedax_bias_tangent", _bias_tangent_results, _bias_tangent, None, ())

PRODUCTS = tuple(
    operation.name for operation in (block_p, outputs_p, image_gradient_p, kernel_gradient_p)
)
"""The names of those with products, in traced programs."""

bilinear.bilinear(
    outputs_p,
    lambda dy, kernel, params, winner: image_gradient_p.bind(dy, kernel, winner, **params)[0],
    lambda dy, x, params, winner: kernel_gradient_p.bind(x, dy, winner, **params)[0],
)
bilinear.bilinear(
    image_gradient_p,
    lambda dx, kernel, params, winner: outputs_p.bind(dx, kernel, winner, **params)[0],
    lambda dx, gradient, params, winner: kernel_gradient_p.bind(dx, gradient, winner, **params)[0],
)
bilinear.bilinear(
    kernel_gradient_p,
    lambda dk, gradient, params, winner: image_gradient_p.bind(gradient, dk, winner, **params)[0],
    lambda dk, x, params, winner: outputs_p.bind(x, dk, winner, **params)[0],
)
batch_by(block_p, (1, None, None), (1, 1))
join_batches(outputs_p, ((1, None, 1), 1), ((None, 4, 4), 4))
join_batches(image_gradient_p, ((1, None, 1), 1), ((None, 3, None), 4))
join_batches(kernel_gradient_p, ((4, None, None), 3), ((None, 4, 4), 4))
in_groups(bias_gradient_p)
in_groups(bias_tangent_p)


def _register_linear(operation: Any, transposed: Any) -> None:
    """Registers the derivatives of an operation that is linear in its first operand.

    `transposed` is its transpose.
    """

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        return operation.bind(*primals, **params), operation.bind(
            ad.instantiate_zeros(tangents[0]), primals[1], **params
        )

    def transpose(cotangents: Any, _: Any, winner: Any, **params: Any) -> Any:
        (cotangent,) = cotangents
        return (
            [None, None]
            if isinstance(cotangent, ad.Zero)
            else [transposed.bind(cotangent, winner, **params)[0], None]
        )

    ad.primitive_jvps[operation] = jvp
    ad.primitive_transposes[operation] = transpose


_register_linear(bias_gradient_p, bias_tangent_p)
_register_linear(bias_tangent_p, bias_gradient_p)


def _block_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    x, kernel, _ = primals
    out, winner = block_p.bind(*primals, **params)
    # the tangent sums a term for each operand that has one
    tangent_rules = (
        lambda dx: outputs_p.bind(dx, kernel, winner, **params),
        lambda dkernel: outputs_p.bind(x, dkernel, winner, **params),
        lambda dbias: bias_tangent_p.bind(dbias, winner, native=True),
    )
    terms = [
        rule(tangent)[0]
        for rule, tangent in zip(tangent_rules, tangents)
        if not isinstance(tangent, ad.Zero)
    ]
    return [out, winner], [
        sum(terms[1:], terms[0]),
        ad.Zero(jax.typeof(winner).update(dtype=jax.dtypes.float0)),
    ]


ad.primitive_jvps[block_p] = _block_jvp
