"""Products that leave zeros out: the gradients of convolutions behind pooling, and fully connected
layers of plain images."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax.ops import affine, convolve
from fedax.ops.conv import lay_images
from fedax.ops.extension import status
from layer_samples import agree, close, normal, plain_conv, thinned

native = pytest.mark.skipif(not status().used, reason=status().reason)
pytestmark = native


def plain(x, kernel, stride, padding):
    strides = (stride, stride) if isinstance(stride, int) else stride
    return plain_conv(x, kernel, strides, padding)


def gradients(x, kernel, cotangent, stride, padding, convolution=convolve):
    function = partial(convolution, stride=stride, padding=padding)
    return jax.jit(lambda x, kernel, cotangent: jax.vjp(function, x, kernel)[1](cotangent))(
        x, kernel, cotangent
    )


CASES = [  # batch, rows, columns, channels, height, width, outputs, stride, padding
    (17, 9, 12, 20, 3, 3, 7, 2, "SAME"),  # two blocks of channels, the second of four
    (5, 13, 9, 40, 7, 4, 3, (3, 2), ((2, 0), (1, 4))),
    (16, 8, 8, 33, 6, 3, 5, 3, "VALID"),  # rows and columns that no kernel meets
    (17, 7, 8, 33, 4, 4, 35, 1, "SAME"),  # images' gradients by regions, of blocks of channels
    (50, 9, 10, 12, 5, 5, 20, 1, ((4, 0), (1, 3))),  # and of columns side by side
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_gradients_of_few_numbers(sizes, dtype):
    batch, rows, columns, channels, height, width, outputs, stride, padding = sizes
    rng = np.random.default_rng(0)
    x = normal(rng, (batch, rows, columns, channels), dtype)
    kernel = normal(rng, (height, width, channels, outputs), dtype)
    strides = (stride, stride) if isinstance(stride, int) else stride
    shape = jax.eval_shape(partial(plain_conv, stride=strides, padding=padding), x, kernel).shape
    for share in (0.2, 0.01, 0.0):
        cotangent = thinned(rng, normal(rng, shape, dtype), share)
        for own, other in zip(
            *(gradients(x, kernel, cotangent, stride, padding, form) for form in (convolve, plain))
        ):
            close(own, other)


def test_zeros_are_left_out_where_they_are_many():
    # what is not a number times zero would be none: it shows which numbers are multiplied
    rng = np.random.default_rng(1)
    x = jnp.full((16, 8, 8, 16), jnp.nan, "float32")
    kernel = jnp.full((3, 3, 16, 8), jnp.nan, "float32")
    few = jnp.zeros((16, 8, 8, 8), "float32").at[:, 3, 3, 5].set(1.0)
    of_image, of_kernel = gradients(x, kernel, few, 1, "SAME")
    assert not jnp.isnan(of_kernel[..., :5]).any()
    assert jnp.isnan(of_kernel[..., 5]).all()
    assert (
        jnp.isnan(of_image).any((0, 3)).sum()
        == jnp.isnan(of_image).all((0, 3))[2:5, 2:5].sum()
        == 9
    )
    many = normal(rng, few.shape, "float32").at[..., 5].set(0.0)
    assert jnp.isnan(gradients(x, kernel, many, 1, "SAME")[1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(50, 5, 7, 3), (17, 1, 1, 5)], ids=str)
def test_images_laid_out_are_the_same(shape, dtype):
    x = normal(np.random.default_rng(5), shape, dtype)
    assert (jax.jit(lay_images)(x) == x).all()
    stacked = jnp.stack([x, 2 * x, -x], 2)
    assert (jax.vmap(lay_images, 2, 1)(stacked) == jnp.moveaxis(stacked, 2, 1)).all()
    gradient = jax.grad(lambda x: (lay_images(x) ** 3).sum())
    close(gradient(x), 3 * x**2)
    close(jax.vjp(gradient, x)[1](x)[0], 6 * x**2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("share", [1, 0.2])
@pytest.mark.parametrize("sizes", [(1, 784, 200), (64, 20, 1), (129, 17, 277)], ids=str)
def test_fully_connected(sizes, share, dtype):
    rng = np.random.default_rng(0)
    n, k, o = sizes
    x = thinned(rng, normal(rng, (n, k), dtype), share)
    kernel = normal(rng, (k, o), dtype)
    agree(affine.outputs, jnp.matmul, (x, kernel), rng)


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [(0, None), (1, 1)])
def test_fully_connected_under_vmap(mapped):
    rng = np.random.default_rng(1)
    x = normal(rng, (9, 30), "float64")
    kernel = normal(rng, (30, 19), "float64")
    x, kernel = (
        value
        if axis is None
        else jnp.moveaxis(jnp.stack([value, 2 * value + 1, value**2]), 0, axis)
        for value, axis in zip((x, kernel), mapped)
    )
    agree(jax.vmap(affine.outputs, mapped), jax.vmap(jnp.matmul, mapped), (x, kernel), rng)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_leaving_zeros_out_changes_no_bit(dtype):
    rng = np.random.default_rng(3)
    few = thinned(rng, normal(rng, (40, 300), dtype), 0.1)
    many = normal(rng, (400, 300), dtype)
    kernel = normal(rng, (300, 200), dtype)
    y = normal(rng, (300, 200), dtype)
    # among many rows, or columns, without zeros no lists are made
    assert (
        affine.outputs(few, kernel) == affine.outputs(jnp.concatenate([few, many]), kernel)[:40]
    ).all()

    def gradient(x):
        return affine.kernel_gradient(x, y)

    assert (gradient(few.T) == gradient(jnp.concatenate([few, many]).T)[:40]).all()
