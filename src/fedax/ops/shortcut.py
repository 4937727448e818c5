"""The end of a residual block: the sum with the shortcut, through ReLU, in one pass."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedax.errors import InvalidInput
from fedax.ops.conv import Images
from fedax.ops.primitives import Result, aligned, batch_by, choose, primitive
from fedax.utils.jax_internals import ad


def join(x: Images, shortcut: Images, stride: int = 1) -> Images:
    r"""Computes $\max(x + s, 0)$ with s every stride-th pixel of the shortcut, and zeros in the
    channels that it lacks.

    This is option A of He et al. (arXiv:1512.03385, section 3.3). Derivatives of any order and
    mode.

    Args:
        x: images of shape (batch, rows, columns, channels).
        shortcut: images with ceil(size / stride) = size of x along rows and columns, and at most as
            many channels.
        stride: at least 1.

    Raises:
        InvalidInput: sizes that do not fit.

    >>> join(
    ...     jnp.full((1, 1, 1, 2), -3.0), jnp.arange(4.0).reshape(1, 2, 2, 1) + 5, 2
    ... ).ravel().tolist()
    [2.0, 0.0]
    """
    check_fit("join(x, shortcut, stride)", x, shortcut, stride)
    images = aligned(x[None], shortcut[None])
    return join_p.bind(*images, stride=stride, size=shortcut.shape[1:], native=choose(*images))[0][
        0
    ]


def check_fit(name: str, x: Images, shortcut: Images, stride: int) -> None:
    """Refuses sizes of a shortcut that do not fit.

    Raises:
        InvalidInput: with the name of the arguments and their shapes.
    """
    fits = stride >= 1 and x.shape[0] == shortcut.shape[0] and x.shape[3] >= shortcut.shape[3]
    if not fits or any(-(-shortcut.shape[k] // stride) != x.shape[k] for k in (1, 2)):
        got = (x.shape, shortcut.shape, stride)
        raise InvalidInput.of(name, got, "sizes of x that the stride makes of the shortcut's")


def subsample(shortcut: Any, channels: int, stride: int) -> Any:
    """Returns every stride-th pixel of a shortcut (group, example, row, column, channel), zeros in
    missing channels.
    """
    missing = channels - shortcut.shape[4]
    return (
        jnp.pad(shortcut[:, :, ::stride, ::stride], ((0, 0),) * 4 + ((0, missing),))
        if missing or stride > 1
        else shortcut
    )


def scatter(gradient: Any, size: Any, stride: int) -> Any:
    """Transposes `subsample`, for shortcuts of a size (rows, columns, channels)."""
    # zeros between pixels, and behind the last one up to the old size
    ends = [n - stride * (m - 1) - 1 for n, m in zip(size, gradient.shape[2:4])]
    widths = [(0, 0, 0), (0, 0, 0), *((0, end, stride - 1) for end in ends), (0, 0, 0)]
    # channels that the shortcut lacks get nothing
    return lax.pad(gradient[..., : size[2]], jnp.zeros((), gradient.dtype), widths)


def _join(x: Any, shortcut: Any, *, stride: int, size: Any) -> list[Any]:
    return [jax.nn.relu(x + subsample(shortcut, x.shape[4], stride))]


def _tangent(dx: Any, dshortcut: Any, out: Any, *, stride: int, size: Any) -> list[Any]:
    total = dx + subsample(dshortcut, dx.shape[4], stride)
    return [jnp.where(out <= 0, jnp.zeros_like(total), total)]


def _gradient(gradient: Any, out: Any, *, stride: int, size: Any) -> list[Any]:
    dx = jnp.where(out <= 0, jnp.zeros_like(gradient), gradient)
    return [dx, scatter(dx, size, stride)]


def _results(x: Any, *_: Any, **__: Any) -> list[Result]:
    return [Result(x.shape, x.dtype)]


def _gradient_results(gradient: Any, _: Any, *, size: Any, **__: Any) -> list[Result]:
    return [
        Result(gradient.shape, gradient.dtype),
        Result((*gradient.shape[:2], *size), gradient.dtype),
    ]


def _make_numbers(kind: int) -> Any:
    return lambda *_, stride, size: [kind, stride]


join_p = primitive("fedax_join", _results, _join, ("fedax_join", _make_numbers(0)), (True, True))
gradient_p = primitive(
    "fedax_join_gradient",
    _gradient_results,
    _gradient,
    ("fedax_join", _make_numbers(1)),
    (True, True),
)
tangent_p = primitive("fedax_join_tangent", _results, _tangent, None, ())
batch_by(join_p, (1, 1), (1,))
batch_by(gradient_p, (1, 1), (1, 1))
batch_by(tangent_p, (1, 1, 1), (1,))


def _join_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    (out,) = join_p.bind(*primals, **params)
    return [out], tangent_p.bind(*map(ad.instantiate_zeros, tangents), out, **params)


def _tangent_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    # the sign of the output is constant almost everywhere
    linear = map(ad.instantiate_zeros, tangents[:2])
    return tangent_p.bind(*primals, **params), tangent_p.bind(*linear, primals[2], **params)


def _gradient_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    return gradient_p.bind(*primals, **params), gradient_p.bind(
        ad.instantiate_zeros(tangents[0]), primals[1], **params
    )


def _tangent_transpose(cotangents: Any, dx: Any, dshortcut: Any, out: Any, **params: Any) -> Any:
    (cotangent,) = cotangents
    if isinstance(cotangent, ad.Zero):
        return [None, None, None]
    gradients = gradient_p.bind(cotangent, out, **params)
    return [
        gradient if ad.is_undefined_primal(x) else None
        for gradient, x in zip(gradients, (dx, dshortcut))
    ] + [None]


def _gradient_transpose(cotangents: Any, gradient: Any, out: Any, **params: Any) -> Any:
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [None, None]
    return [tangent_p.bind(*map(ad.instantiate_zeros, cotangents), out, **params)[0], None]


ad.primitive_jvps[join_p] = _join_jvp
ad.primitive_jvps[tangent_p] = _tangent_jvp
ad.primitive_jvps[gradient_p] = _gradient_jvp
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[gradient_p] = _gradient_transpose
