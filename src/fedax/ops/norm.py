"""Group normalisation, which needs no statistics of the batch."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.errors import InvalidInput
from fedax.ops.conv import Images
from fedax.ops.extension import IMAGES, call, derive_by, fold_batches, serves

EPSILON = 1e-5


class GroupNorm(NamedTuple):
    r"""$y = \gamma_p (x - m) / \sqrt{v + 10^{-5}} + \beta_p$, with mean m and variance v over the
    pixels and channels of a group.

    Every example is normalised by itself, channel p with its group of neighbouring channels (Wu and
    He, arXiv:1803.08494).
    """

    scale: Float[Array, "channels"]
    offset: Float[Array, "channels"]

    @classmethod
    def init(cls, channels: int) -> "GroupNorm":
        """Returns scale 1 and offset 0."""
        return cls(jnp.ones(channels), jnp.zeros(channels))

    def __call__(self, x: Images, groups: int) -> Images:
        return group_norm(x, self.scale, self.offset, groups)


def group_norm(
    x: Images, scale: Float[Array, "channels"], offset: Float[Array, "channels"], groups: int
) -> Images:
    """Applies `GroupNorm`, with reverse-mode derivatives of any order.

    Args:
        x: images of shape (batch, rows, columns, channels).
        scale: for each channel.
        offset: for each channel.
        groups: a divisor of the number of channels.

    Raises:
        InvalidInput: another number of groups.

    >>> group_norm(
    ...     jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1), jnp.array([2.0]), jnp.array([5.0]), 1
    ... ).ravel().round(3).tolist()
    [3.0, 7.0]
    """
    channels = x.shape[3]
    if groups < 1 or channels % groups:
        raise InvalidInput.of("group_norm(groups=...)", groups, f"divisors of {channels}")
    if serves(x, scale, offset):
        return _normalise(x, scale, offset, groups)[0]
    return _normalise_by_xla(x, scale, offset, groups)


def _normalise_by_xla(x: Any, scale: Any, offset: Any, groups: int) -> Any:
    members = x.reshape(*x.shape[:3], groups, x.shape[3] // groups)
    centred = members - members.mean((1, 2, 4), keepdims=True)
    variance = (centred * centred).mean((1, 2, 4), keepdims=True)
    z = (centred / jnp.sqrt(variance + EPSILON)).reshape(x.shape)
    return z * scale[None, None, None, :] + offset[None, None, None, :]


_differentiable: Any = partial(jax.custom_vjp, nondiff_argnums=(3,))


@_differentiable
def _normalise(x: Any, scale: Any, offset: Any, groups: int) -> tuple[Any, Any, Any]:
    """Returns the images, the means and one over the standard deviations, (groups, example)."""

    def run(x: Any, scale: Any, offset: Any) -> Any:
        statistics = (groups, x.shape[0])
        return call(
            "fedax_norm",
            [0, groups],
            (x, scale, offset),
            (IMAGES, None, None),
            (x.shape, statistics, statistics),
            (IMAGES, None, None),
        )

    y, mean, rate = fold_batches(run, run, (0, None, None), (0, 1, 1))(x, scale, offset)
    return y, mean, rate


def _forward(x: Any, scale: Any, offset: Any, groups: int) -> Any:
    y, mean, rate = _normalise(x, scale, offset, groups)
    return (y, mean, rate), (x, mean, rate, scale)


def _backward(groups: int, saved: Any, gradients: Any) -> Any:
    """Computes the gradients from the statistics, which follow from the images."""

    def native(x: Any, mean: Any, rate: Any, scale: Any, gradient: Any) -> Any:
        results = call(
            "fedax_norm",
            [1, groups],
            (x, mean, rate, scale, gradient),
            (IMAGES, None, None, None, IMAGES),
            (x.shape, scale.shape, scale.shape),
            (IMAGES, None, None),
        )
        return tuple(results)

    def plain(x: Any, mean: Any, rate: Any, scale: Any, gradient: Any) -> Any:
        # with the statistics of the images, so that their derivatives are complete
        normalise = partial(_normalise_by_xla, groups=groups)
        return jax.vjp(normalise, x, scale, jnp.zeros_like(scale))[1](gradient)

    return derive_by(native, plain)(*saved, gradients[0])


_normalise.defvjp(_forward, _backward)
