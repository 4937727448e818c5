"""Pooling of images by reshape: XLA's windowed reduction and its gradient are slow on CPUs."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from fedax.models.layers.conv import Images


@jax.custom_vjp
def max_pool(x: Images) -> Images:
    """The largest of every 2 x 2 pixels; an odd last row or column is left out.

    Of equal pixels the left, and then the upper one receives the gradient.

    >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    return _forward(x)[0]


def _forward(x: Images) -> tuple[Images, tuple[Images, Array]]:
    """Rows first, so that the larger half of the work runs along whole lines of memory."""
    x = lax.optimization_barrier(x)  # otherwise what makes x is fused into, and repeated in, every pass over it
    batch, rows, columns, channels = x.shape
    tall, wide = rows // 2, columns // 2
    pairs = x[:, : 2 * tall, : 2 * wide].reshape(batch, tall, 2, 2 * wide * channels)
    higher = jnp.maximum(pairs[:, :, 0], pairs[:, :, 1])
    sides = higher.reshape(batch, tall, wide, 2, channels)
    return jnp.maximum(sides[:, :, :, 0], sides[:, :, :, 1]), (x, higher)


def _backward(saved: tuple[Images, Array], slope: Images) -> tuple[Images]:
    x, higher = saved
    batch, rows, columns, channels = x.shape
    tall, wide = rows // 2, columns // 2
    sides = higher.reshape(batch, tall, wide, 2, channels)
    left = sides[:, :, :, 0] >= sides[:, :, :, 1]
    line = _given(left[:, :, :, None], slope[:, :, :, None]).reshape(batch, tall, 1, -1)
    pairs = x[:, : 2 * tall, : 2 * wide].reshape(batch, tall, 2, 2 * wide * channels)
    upper = pairs[:, :, 0] >= pairs[:, :, 1]
    gradient = _given(upper[:, :, None], line).reshape(batch, 2 * tall, 2 * wide, channels)
    if rows % 2 or columns % 2:
        gradient = jnp.pad(gradient, ((0, 0), (0, rows % 2), (0, columns % 2), (0, 0)))
    return (lax.optimization_barrier(gradient),)


def _given(first: Bool[Array, "..."], slope: Float[Array, "..."]) -> Float[Array, "..."]:
    """The slope in the first of two places along the axis before the last where `first`, in the second elsewhere; 0 otherwise."""
    place = jnp.arange(2).reshape((1,) * (first.ndim - 2) + (2, 1)) == 0
    return jnp.where(first == place, slope, 0)


max_pool.defvjp(_forward, _backward)
