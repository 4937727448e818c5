"""Group normalisation, which needs no statistics of the batch, alone or with the end of a residual
block.
"""

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
from fedax.ops.shortcut import check_fit, scatter, subsample
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
    return _apply_norm("group_norm", (x, scale, offset), groups, relu=False, stride=0)[0]


def residual(
    x: Images,
    scale: Float[Array, "channels"],
    offset: Float[Array, "channels"],
    groups: int,
    shortcut: Images | None = None,
    stride: int = 1,
) -> tuple[Images, Images]:
    r"""Computes $\max(\mathrm{norm}(x) + s, 0)$, the end of a residual block with group
    normalisation, in one pass.

    It is returned twice: for the next layer, and for the next shortcut, so that the sum of their
    gradients needs no pass of its own. s is as in `join`, or 0. Derivatives of any order and mode.

    Args:
        x: images of shape (batch, rows, columns, channels).
        scale: for each channel.
        offset: for each channel.
        groups: a divisor of the number of channels.
        shortcut: images with ceil(size / stride) = size of x along rows and columns, and at most as
            many channels. None: 0.
        stride: of the pixels of the shortcut, at least 1.

    Raises:
        InvalidInput: another number of groups, or sizes that do not fit.

    >>> residual(jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1), jnp.array([2.0]), jnp.array([1.0]), 1)[
    ...     0
    ... ].ravel().round(3).tolist()
    [0.0, 3.0]
    """
    if shortcut is None:
        return _apply_norm("residual", (x, scale, offset), groups, relu=True, stride=0)
    check_fit("residual(x, shortcut, stride)", x, shortcut, stride)
    return _apply_norm("residual", (x, scale, offset, shortcut), groups, relu=True, stride=stride)


def _apply_norm(
    name: str, operands: tuple[Any, ...], groups: int, *, relu: bool, stride: int
) -> tuple[Images, Images]:
    channels = operands[0].shape[3]
    if groups < 1 or channels % groups:
        raise InvalidInput.of(f"{name}(groups=...)", groups, f"divisors of {channels}")
    size = operands[3].shape[1:] if stride else ()
    operands = aligned(*(x[None] for x in operands))
    out, copy, *_ = norm_p.bind(
        *operands, groups=groups, relu=relu, stride=stride, size=size, native=choose(*operands)
    )
    return out[0], copy[0]


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


def _norm(
    x: Any, scale: Any, offset: Any, *shortcut: Any, groups: int, relu: bool, stride: int, size: Any
) -> list[Any]:
    mean, rate = _statistics(x, groups)
    y = (x - _broadcast_groups(mean, x)) * (
        _broadcast_groups(rate, x) * _broadcast_channels(scale)
    ) + _broadcast_channels(offset)
    y = y + subsample(shortcut[0], x.shape[4], stride) if shortcut else y
    y = jax.nn.relu(y) if relu else y
    # the output twice, see `residual`
    return [y, y, mean, rate]


def _gradient(
    x: Any,
    mean: Any,
    rate: Any,
    scale: Any,
    *gradients_and_output: Any,
    groups: int,
    relu: bool,
    stride: int,
    size: Any,
) -> list[Any]:
    """Computes, with z the normalised image, dx = rate (g scale - mean(g scale) - z mean(g scale
    z)), means over the group.

    `gradients_and_output` are one or two parts of the gradient g, and the outputs where there is
    ReLU.
    """
    # the two equal outputs have a gradient each, or one of them has none
    gradients = gradients_and_output[: len(gradients_and_output) - relu]
    gradient: Any = sum(gradients[1:], gradients[0])
    # where the output is 0, ReLU is flat
    gradient = (
        jnp.where(gradients_and_output[-1] <= 0, jnp.zeros_like(gradient), gradient)
        if relu
        else gradient
    )
    rates, centred = _broadcast_groups(rate, x), x - _broadcast_groups(mean, x)
    # sums over pixels of g and of g z, shape (group, example, channel)
    total, projected = gradient.sum((2, 3)), (gradient * centred).sum((2, 3)) * rates[:, :, 0, 0]
    count = x.shape[2] * x.shape[3] * x.shape[4] // groups

    def mean_over_groups(sums: Any) -> Any:
        group_sums = (sums * scale[:, None, :]).reshape(*sums.shape[:2], groups, -1).sum(3)
        return _broadcast_groups(group_sums.transpose(0, 2, 1), x) / count

    dx = (
        gradient * (rates * _broadcast_channels(scale))
        - rates * mean_over_groups(total)
        - centred * (rates * rates * mean_over_groups(projected))
    )
    return [
        dx,
        projected.sum(1),
        total.sum(1),
        *([scatter(gradient, size, stride)] if stride else []),
    ]


def _tangent(*operands: Any, groups: int, relu: bool, stride: int, size: Any) -> list[Any]:
    (dx, dscale, doffset, *dshortcut), (x, mean, rate, scale, *out) = _split_operands(
        operands, stride
    )
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
    dy = dy + subsample(dshortcut[0], x.shape[4], stride) if stride else dy
    dy = jnp.where(out[0] <= 0, jnp.zeros_like(dy), dy) if relu else dy
    return [dy, dy]


def _split_operands(operands: Any, stride: int) -> tuple[Any, Any]:
    """Returns the tangents among the operands of `_tangent`, and the point of linearisation."""
    # x, scale, offset, and perhaps the shortcut
    count = 4 if stride else 3
    return operands[:count], operands[count:]


def _norm_results(x: Any, *_: Any, groups: int, **__: Any) -> list[Result]:
    out, statistic = (
        Result(x.shape, x.dtype),
        Result((x.shape[0], groups, x.shape[1]), x.dtype, False),
    )
    return [out, out, statistic, statistic]


def _gradient_results(x: Any, *_: Any, stride: int, size: Any, **__: Any) -> list[Result]:
    channels = Result((x.shape[0], x.shape[4]), x.dtype, False)
    shortcut = [Result((*x.shape[:2], *size), x.dtype)] if stride else []
    return [Result(x.shape, x.dtype), channels, channels, *shortcut]


def _tangent_results(dx: Any, *_: Any, **__: Any) -> list[Result]:
    return [Result(dx.shape, dx.dtype)] * 2


def _make_numbers(kind: int) -> Any:
    # the last number says whether the gradient comes in two parts
    def numbers(*shapes: Any, groups: int, relu: bool, stride: int, size: Any) -> list[int]:
        return [kind, groups, int(relu), stride, int(kind == 1 and len(shapes) - relu == 6)]

    return numbers


norm_p = primitive(
    "fedax_norm",
    _norm_results,
    _norm,
    ("fedax_norm", _make_numbers(0)),
    (True, False, False, True),
    again=True,
)
gradient_p = primitive(
    "fedax_norm_gradient",
    _gradient_results,
    _gradient,
    ("fedax_norm", _make_numbers(1)),
    (True, False, False, False, True, True, True),
)
tangent_p = primitive("fedax_norm_tangent", _tangent_results, _tangent, None, ())
batch_by(norm_p, (1, None, None, 1), (1, 1, 2, 2))
in_groups(gradient_p)
in_groups(tangent_p)


def _norm_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    x, scale = primals[:2]
    out, copy, mean, rate = norm_p.bind(*primals, **params)
    dense_tangents = tuple(map(ad.instantiate_zeros, tangents))
    output_tangents = tangent_p.bind(
        *dense_tangents, x, mean, rate, scale, *([out] if params["relu"] else []), **params
    )
    # the statistics are results too, and have tangents
    _, statistics = jax.jvp(lambda x: _statistics(x, params["groups"]), (x,), dense_tangents[:1])
    return [out, copy, mean, rate], [*output_tangents, *statistics]


def _tangent_transpose(cotangents: Any, *operands: Any, **params: Any) -> Any:
    tangents, (x, mean, rate, scale, *out) = _split_operands(operands, params["stride"])
    # of the two outputs those that were used
    used_cotangents = [cotangent for cotangent in cotangents if not isinstance(cotangent, ad.Zero)]
    if not used_cotangents:
        return [None] * len(operands)
    gradients = gradient_p.bind(x, mean, rate, scale, *used_cotangents, *out, **params)
    # no gradient for the point of linearisation
    results = [
        gradient if ad.is_undefined_primal(dx) else None
        for gradient, dx in zip(gradients, tangents)
    ]
    return results + [None] * (4 + len(out))


def _gradient_transpose(cotangents: Any, *operands: Any, **params: Any) -> Any:
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [None] * len(operands)
    # linear in the parts of the gradient alone, whose transpose is the tangent
    out = operands[-1:] if params["relu"] else ()
    image = tangent_p.bind(*map(ad.instantiate_zeros, cotangents), *operands[:4], *out, **params)[0]
    return [image if ad.is_undefined_primal(operand) else None for operand in operands]


ad.primitive_jvps[norm_p] = _norm_jvp
differentiate_by(tangent_p, _tangent)
differentiate_by(gradient_p, _gradient)
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[gradient_p] = _gradient_transpose
