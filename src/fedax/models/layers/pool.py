"""Pooling of images by reshape: XLA's windowed reduction and its gradient are slow on CPUs."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedax.models.layers.conv import Images


@jax.custom_vjp
def max_pool(x: Images) -> Images:
    """The largest of every 2 x 2 pixels; an odd last row or column is left out.

    Of equal pixels the first in reading order receives the gradient.

    >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    return _squares(x).max((2, 4))


def _squares(x: Images) -> Float[Array, "batch tall 2 wide 2 channels"]:
    batch, rows, columns, channels = x.shape
    even = x[:, : rows // 2 * 2, : columns // 2 * 2]
    return even.reshape(batch, rows // 2, 2, columns // 2, 2, channels)


def _forward(x: Images) -> tuple[Images, tuple[Images, Images]]:
    y = max_pool(x)
    return y, (x, y)


def _backward(saved: tuple[Images, Images], slope: Images) -> tuple[Images]:
    x, y = saved
    squares = _squares(x)
    a, b, c = squares[:, :, 0, :, 0], squares[:, :, 0, :, 1], squares[:, :, 1, :, 0]
    first = jnp.where(a == y, 0, jnp.where(b == y, 1, jnp.where(c == y, 2, 3))).astype(jnp.int8)
    place = jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 1, 2, 1)
    chosen = first[:, :, None, :, None, :] == place
    gradient = jnp.where(chosen, slope[:, :, None, :, None, :], 0).reshape(
        x.shape[0], x.shape[1] // 2 * 2, x.shape[2] // 2 * 2, x.shape[3]
    )
    odd = [(0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)]
    gradient = jnp.pad(gradient, odd) if x.shape[1] % 2 or x.shape[2] % 2 else gradient
    return (lax.optimization_barrier(gradient),)  # otherwise it is made anew for everything that needs it


max_pool.defvjp(_forward, _backward)
