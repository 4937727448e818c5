"""Plain forms of the layers, as XLA has them, and what is compared: values, gradients,
Hessian-vector products."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def normal(rng, shape, dtype):
    return jnp.asarray(rng.normal(size=shape), dtype)


def thinned(rng, x, share):
    """About so large a share of the numbers, zeros in place of the others."""
    return jnp.where(jnp.asarray(rng.random(x.shape) < share), x, 0)


def placed(draw, widest, longest):
    """A kernel's height and width, zeros around an image, and an image's rows and columns that such
    a kernel fits into. There are fewer zeros than the kernel is long: beyond that the gradient of
    an image by XLA 0.10 reads outside of its memory on CPUs."""
    height = draw(st.integers(1, widest))
    width = draw(st.integers(1, widest))
    zeros = [st.integers(0, min(3, k - 1)) for k in (height, width)]
    padding = tuple((draw(before), draw(before)) for before in zeros)
    rows, columns = (
        draw(st.integers(max(k - sum(b), 1), longest)) for k, b in zip((height, width), padding)
    )
    return height, width, padding, rows, columns


def plain_conv(x, kernel, stride, padding):
    return lax.conv_general_dilated(
        x, kernel, stride, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def plain_pool(x, window):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, *window, 1), (1, *window, 1), "VALID")


def plain_norm(x, scale, offset, groups):
    batch, rows, columns, channels = x.shape
    parts = x.reshape(batch, rows * columns, groups, channels // groups)
    z = (parts - parts.mean((1, 3), keepdims=True)) / jnp.sqrt(
        parts.var((1, 3), keepdims=True) + 1e-5
    )
    return z.reshape(x.shape) * scale[None, None, None, :] + offset[None, None, None, :]


def derivatives(function, arguments, weights, directions, order=2):
    """Values, gradients of a sum with random weights, and the product of its Hessian with a
    direction.

    The weighted square makes the Hessian of a bilinear function depend on everything.
    """

    def total(*arguments):
        y = function(*arguments)
        return (weights * (y + y * y)).sum()

    def gradient(*arguments):
        return jax.grad(total, range(len(arguments)))(*arguments)

    def along(*arguments):
        return sum((g * d).sum() for g, d in zip(gradient(*arguments), directions))

    if order == 1:
        return function(*arguments), gradient(*arguments)
    return (
        function(*arguments),
        gradient(*arguments),
        jax.grad(along, range(len(arguments)))(*arguments),
    )


def agree(ours, plain, arguments, rng, order=2):
    """Both have the same derivatives up to this order, to the tolerance of their type relative to
    the largest entry."""
    dtype = arguments[0].dtype
    weights = normal(rng, jax.eval_shape(plain, *arguments).shape, dtype)
    directions = tuple(normal(rng, x.shape, dtype) for x in arguments)
    results = [
        jax.tree.leaves(
            jax.jit(lambda *x, f=f: derivatives(f, x, weights, directions, order))(*arguments)
        )
        for f in (ours, plain)
    ]
    for own, other in zip(*results, strict=True):
        close(own, other)


def close(own, other):
    own = np.asarray(own)
    other = np.asarray(other)
    assert own.dtype == other.dtype
    assert own.shape == other.shape
    scale = max(float(np.abs(other).max(initial=0)), 1e-3)
    assert float(np.abs(own - other).max(initial=0)) <= TOLERANCE[str(own.dtype)] * scale
