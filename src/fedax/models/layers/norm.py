"""Group normalisation, which needs no statistics of the batch."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import ad
from jaxtyping import Array, Float

from fedax.core import InvalidInput
from fedax.models.layers.conv import Images
from fedax.models.layers.primitives import Result, aligned, batch_by, choose, differentiate_by, in_groups, primitive

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


def group_norm(x: Images, scale: Float[Array, "channels"], offset: Float[Array, "channels"], groups: int) -> Images:
    """See `GroupNorm`. Derivatives of any order and mode.

    Args:
        x: images of shape (batch, rows, columns, channels).
        scale: for each channel.
        offset: for each channel.
        groups: a divisor of the number of channels.

    Raises:
        InvalidInput: another number of groups.

    >>> group_norm(jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1), jnp.array([2.0]), jnp.array([5.0]), 1).ravel().round(3).tolist()
    [3.0, 7.0]
    """
    if groups < 1 or x.shape[3] % groups:
        raise InvalidInput.of("group_norm(groups=...)", groups, f"divisors of {x.shape[3]}")
    operands = aligned(x[None], scale[None], offset[None])
    return norm_p.bind(*operands, groups=groups, native=choose(*operands))[0][0]


def _statistics(x: Any, groups: int) -> tuple[Any, Any]:
    """Mean of each group, and one over its standard deviation: (group of examples, group of channels, example)."""
    mean = _means(x, groups)
    centred = x - _spread(mean, x)
    return mean, 1 / jnp.sqrt(_means(centred * centred, groups) + EPSILON)


def _means(x: Any, groups: int) -> Any:
    sums = x.sum((2, 3))
    count = x.shape[2] * x.shape[3] * x.shape[4] // groups
    return sums.reshape(*sums.shape[:2], groups, -1).sum(3).transpose(0, 2, 1) / count


def _spread(statistic: Any, x: Any) -> Any:
    """A statistic for every channel of every image."""
    return jnp.repeat(statistic.transpose(0, 2, 1), x.shape[4] // statistic.shape[1], axis=2)[:, :, None, None, :]


def _channels(x: Any) -> Any:
    return x[:, None, None, None, :]


def _norm(x: Any, scale: Any, offset: Any, *, groups: int) -> list[Any]:
    mean, rate = _statistics(x, groups)
    return [(x - _spread(mean, x)) * (_spread(rate, x) * _channels(scale)) + _channels(offset), mean, rate]


def _gradient(gradient: Any, x: Any, mean: Any, rate: Any, scale: Any, *, groups: int) -> list[Any]:
    """With z the normalised image: dx = rate (g scale - mean(g scale) - z mean(g scale z)), means over the group."""
    rates, centred = _spread(rate, x), x - _spread(mean, x)
    total, along = gradient.sum((2, 3)), (gradient * centred).sum((2, 3)) * rates[:, :, 0, 0]
    count = x.shape[2] * x.shape[3] * x.shape[4] // groups

    def over_groups(sums: Any) -> Any:
        parts = (sums * scale[:, None, :]).reshape(*sums.shape[:2], groups, -1).sum(3)
        return _spread(parts.transpose(0, 2, 1), x) / count

    dx = gradient * (rates * _channels(scale)) - rates * over_groups(total) - centred * (rates * rates * over_groups(along))
    return [dx, along.sum(1), total.sum(1)]


def _tangent(dx: Any, dscale: Any, doffset: Any, x: Any, mean: Any, rate: Any, scale: Any, *, groups: int) -> list[Any]:
    rates = _spread(rate, x)
    z = (x - _spread(mean, x)) * rates
    dz = rates * (dx - _spread(_means(dx, groups), x) - z * _spread(_means(dx * z, groups), x))
    return [dz * _channels(scale) + z * _channels(dscale) + _channels(doffset)]


def _norm_results(x: Any, *_: Any, groups: int, **__: Any) -> list[Result]:
    statistic = Result((x.shape[0], groups, x.shape[1]), x.dtype, False)
    return [Result(x.shape, x.dtype), statistic, statistic]


def _gradient_results(gradient: Any, *_: Any, **__: Any) -> list[Result]:
    channels = Result((gradient.shape[0], gradient.shape[4]), gradient.dtype, False)
    return [Result(gradient.shape, gradient.dtype), channels, channels]


def _tangent_results(dx: Any, *_: Any, **__: Any) -> list[Result]:
    return [Result(dx.shape, dx.dtype)]


def _numbers(kind: int) -> Any:
    return lambda *_, groups: [kind, groups]


norm_p = primitive("fedax_norm", _norm_results, _norm, ("fedax_norm", _numbers(0)), (True, False, False))
gradient_p = primitive(
    "fedax_norm_gradient", _gradient_results, _gradient, ("fedax_norm", _numbers(1)), (True, True, False, False, False)
)
tangent_p = primitive("fedax_norm_tangent", _tangent_results, _tangent, None, ())
batch_by(norm_p, (1, None, None), (1, 2, 2))
in_groups(gradient_p)
in_groups(tangent_p)


def _norm_jvp(primals: Any, tangents: Any, *, groups: int, native: bool) -> Any:
    x, scale, _ = primals
    out, mean, rate = norm_p.bind(*primals, groups=groups, native=native)
    whole = tuple(map(ad.instantiate_zeros, tangents))
    (tangent,) = tangent_p.bind(*whole, x, mean, rate, scale, groups=groups, native=native)
    _, statistics = jax.jvp(lambda x: _statistics(x, groups), (x,), whole[:1])
    return [out, mean, rate], [tangent, *statistics]


def _tangent_transpose(cotangents: Any, dx: Any, dscale: Any, doffset: Any, *saved: Any, **params: Any) -> Any:
    (cotangent,) = cotangents
    if isinstance(cotangent, ad.Zero):
        return [None] * 7
    gradients = gradient_p.bind(cotangent, *saved, **params)
    return [gradient if ad.is_undefined_primal(x) else None for gradient, x in zip(gradients, (dx, dscale, doffset))] + [
        None
    ] * 4


def _gradient_transpose(cotangents: Any, gradient: Any, *saved: Any, **params: Any) -> Any:
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [None] * 5
    return [tangent_p.bind(*map(ad.instantiate_zeros, cotangents), *saved, **params)[0]] + [None] * 4


ad.primitive_jvps[norm_p] = _norm_jvp
differentiate_by(tangent_p, _tangent)
differentiate_by(gradient_p, _gradient)
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[gradient_p] = _gradient_transpose
