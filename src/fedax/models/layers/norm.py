"""Group normalisation, which needs no statistics of the batch."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.models.layers.conv import Images

EPSILON = 1e-5


class GroupNorm(NamedTuple):
    r"""$y = \gamma_p (x - m) / \sqrt{v + 10^{-5}} + \beta_p$, with mean m and variance v over the pixels and channels of a group.

    Every example is normalised by itself, channel p with its group of neighbouring channels (Wu and He, arXiv:1803.08494).
    """

    scale: Float[Array, "channels"]
    offset: Float[Array, "channels"]

    @classmethod
    def init(cls, channels: int) -> "GroupNorm":
        """Scale 1 and offset 0."""
        return cls(jnp.ones(channels), jnp.zeros(channels))

    def __call__(self, x: Images, groups: int) -> Images:
        return group_norm(x, self.scale, self.offset, groups)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def group_norm(x: Images, scale: Float[Array, "channels"], offset: Float[Array, "channels"], groups: int) -> Images:
    """See `GroupNorm`; `groups` divides the number of channels."""
    return _forward(x, scale, offset, groups)[0]


def _forward(x: Images, scale: Array, offset: Array, groups: int) -> tuple[Images, Any]:
    count = x.shape[1] * x.shape[2] * x.shape[3] // groups
    mean = _over_groups(x.sum((1, 2)), groups) / count
    centred = x - mean[:, None, None, :]
    variance = _over_groups((centred * centred).sum((1, 2)), groups) / count
    rate = 1 / jnp.sqrt(variance + EPSILON)
    y = centred * (rate * scale[None, :])[:, None, None, :] + offset[None, None, None, :]
    return y, (x, mean, rate, scale)


def _backward(groups: int, saved: Any, slope: Images) -> tuple[Array, Array, Array]:
    """With z the normalised image: dx = rate (g scale - mean(g scale) - z mean(g scale z)), means over the group."""
    x, mean, rate, scale = saved
    count = x.shape[1] * x.shape[2] * x.shape[3] // groups
    centred = x - mean[:, None, None, :]
    total, along = slope.sum((1, 2)), (slope * centred).sum((1, 2)) * rate
    shift = _over_groups(total * scale[None, :], groups) / count
    pull = _over_groups(along * scale[None, :], groups) / count
    gain = (rate * scale[None, :])[:, None, None, :]
    dx = slope * gain - (rate * shift)[:, None, None, :] - centred * (rate * rate * pull)[:, None, None, :]
    return dx, along.sum(0), total.sum(0)


def _over_groups(x: Float[Array, "batch channels"], groups: int) -> Float[Array, "batch channels"]:
    """Each channel's sum over its group."""
    batch, channels = x.shape
    sums = x.reshape(batch, groups, channels // groups).sum(2, keepdims=True)
    return jnp.broadcast_to(sums, (batch, groups, channels // groups)).reshape(batch, channels)


group_norm.defvjp(_forward, _backward)
