"""Group normalisation, which needs no statistics of the batch."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.errors import InvalidInput
from fedax.ops.conv import Images
from fedax.ops.primitives import (
    Result,
    aligned,
    batch_by,
    choose,
    differentiate_by,
    in_groups,
    primitive,
)
from fedax.utils.jax_internals import ad

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
    """Applies `GroupNorm`, with derivatives of any order and mode.

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
    operands = aligned(x[None], scale[None], offset[None])
    y, *_ = norm_p.bind(*operands, groups=groups, native=choose(*operands))
    return y[0]


def _statistics(x: Any, groups: int) -> tuple[Any, Any]:
    """Returns the mean of each group and one over its standard deviation: (group of examples, group
    of channels, example).
    """
    mean = _group_means(x, groups)
    centred = x - _broadcast_groups(mean, x)
    return mean, 1 / jnp.sqrt(_group_means(centred * centred, groups) + EPSILON)


def _group_means(x: Any, groups: int) -> Any:
    # (group, example, channel)
    sums = x.sum((2, 3))
    count = x.shape[2] * x.shape[3] * x.shape[4] // groups
    # a group of channels are neighbours; turned to (group, channel group, example)
    return sums.reshape(*sums.shape[:2], groups, -1).sum(3).transpose(0, 2, 1) / count


def _broadcast_groups(statistic: Any, x: Any) -> Any:
    """Repeats a statistic for every channel of every image."""
    return jnp.repeat(statistic.transpose(0, 2, 1), x.shape[4] // statistic.shape[1], axis=2)[
        :, :, None, None, :
    ]


def _broadcast_channels(x: Any) -> Any:
    return x[:, None, None, None, :]


def _norm(x: Any, scale: Any, offset: Any, *, groups: int) -> list[Any]:
    mean, rate = _statistics(x, groups)
    gain = _broadcast_groups(rate, x) * _broadcast_channels(scale)
    y = (x - _broadcast_groups(mean, x)) * gain + _broadcast_channels(offset)
    return [y, mean, rate]


def _gradient(x: Any, mean: Any, rate: Any, scale: Any, gradient: Any, *, groups: int) -> list[Any]:
    """Computes, with z the normalised image, dx = rate (g scale - mean(g scale) - z mean(g scale
    z)), means over the group.
    """
    rates = _broadcast_groups(rate, x)
    centred = x - _broadcast_groups(mean, x)
    # sums over pixels of g and of g z, shape (group, example, channel)
    total = gradient.sum((2, 3))
    projected = (gradient * centred).sum((2, 3)) * rates[:, :, 0, 0]
    count = x.shape[2] * x.shape[3] * x.shape[4] // groups

    def mean_over_groups(sums: Any) -> Any:
        group_sums = (sums * scale[:, None, :]).reshape(*sums.shape[:2], groups, -1).sum(3)
        return _broadcast_groups(group_sums.transpose(0, 2, 1), x) / count

    dx = (
        gradient * (rates * _broadcast_channels(scale))
        - rates * mean_over_groups(total)
        - centred * (rates * rates * mean_over_groups(projected))
    )
    return [dx, projected.sum(1), total.sum(1)]


def _tangent(
    dx: Any,
    dscale: Any,
    doffset: Any,
    x: Any,
    mean: Any,
    rate: Any,
    scale: Any,
    *,
    groups: int,
) -> list[Any]:
    rates = _broadcast_groups(rate, x)
    z = (x - _broadcast_groups(mean, x)) * rates
    # mean and deviation move with x, which takes out the parts of dx along 1 and along z
    dz = rates * (
        dx
        - _broadcast_groups(_group_means(dx, groups), x)
        - z * _broadcast_groups(_group_means(dx * z, groups), x)
    )
    dy = (
        dz * _broadcast_channels(scale)
        + z * _broadcast_channels(dscale)
        + _broadcast_channels(doffset)
    )
    return [dy]


def _norm_results(x: Any, *_: Any, groups: int, **__: Any) -> list[Result]:
    statistic = Result((x.shape[0], groups, x.shape[1]), x.dtype, False)
    return [Result(x.shape, x.dtype), statistic, statistic]


def _gradient_results(x: Any, *_: Any, **__: Any) -> list[Result]:
    channels = Result((x.shape[0], x.shape[4]), x.dtype, False)
    return [Result(x.shape, x.dtype), channels, channels]


def _tangent_results(dx: Any, *_: Any, **__: Any) -> list[Result]:
    return [Result(dx.shape, dx.dtype)]


def _make_numbers(kind: int) -> Any:
    return lambda *_, groups: [kind, groups]


norm_p = primitive(
    "fedax_norm",
    _norm_results,
    _norm,
    ("fedax_norm", _make_numbers(0)),
    (True, False, False),
)
gradient_p = primitive(
    "fedax_norm_gradient",
    _gradient_results,
    _gradient,
    ("fedax_norm", _make_numbers(1)),
    (True, False, False, False, True),
)
tangent_p = primitive("fedax_norm_tangent", _tangent_results, _tangent, None, ())
batch_by(norm_p, (1, None, None), (1, 2, 2))
in_groups(gradient_p)
in_groups(tangent_p)


def _norm_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    x, scale, _ = primals
    y, mean, rate = norm_p.bind(*primals, **params)
    dense_tangents = tuple(map(ad.instantiate_zeros, tangents))
    (dy,) = tangent_p.bind(*dense_tangents, x, mean, rate, scale, **params)
    # the statistics are results too, and have tangents
    _, statistics = jax.jvp(lambda x: _statistics(x, params["groups"]), (x,), dense_tangents[:1])
    return [y, mean, rate], [dy, *statistics]


def _tangent_transpose(cotangents: Any, *operands: Any, **params: Any) -> Any:
    (cotangent,) = cotangents
    tangents = operands[:3]
    if isinstance(cotangent, ad.Zero):
        return [None] * len(operands)
    gradients = gradient_p.bind(*operands[3:], cotangent, **params)
    # no gradient for the point of linearisation
    results = [
        gradient if ad.is_undefined_primal(tangent) else None
        for gradient, tangent in zip(gradients, tangents)
    ]
    return results + [None] * 4


def _gradient_transpose(cotangents: Any, *operands: Any, **params: Any) -> Any:
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [None] * len(operands)
    # linear in the gradient alone, whose transpose is the tangent
    (image,) = tangent_p.bind(*map(ad.instantiate_zeros, cotangents), *operands[:4], **params)
    return [None] * 4 + [image]


ad.primitive_jvps[norm_p] = _norm_jvp
differentiate_by(tangent_p, _tangent)
differentiate_by(gradient_p, _gradient)
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[gradient_p] = _gradient_transpose
