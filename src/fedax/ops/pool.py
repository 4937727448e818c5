"""Pooling of images by their largest pixels, with a bias and ReLU in the same pass."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedax.errors import InvalidInput
from fedax.ops.conv import Images
from fedax.ops.primitives import Result, aligned, batch_by, choose, in_groups, primitive
from fedax.utils.jax_internals import ad

FLAT = 255
"""Marks an output where ReLU is flat."""
Window = tuple[int, int]


def max_pool(x: Images, window: int | Window = 2) -> Images:
    """Returns the largest of every 2 x 2 pixels, or of other windows.

    Rows and columns that fill no window are left out.

    Of equal pixels the first in reading order receives the gradient. Derivatives of any order and
    mode.

    Args:
        x: images of shape (batch, rows, columns, channels).
        window: its rows and columns, at least 1 and no more than 250 pixels together.

    Raises:
        InvalidInput: another window.

    >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    return _apply_pool(x, jnp.zeros(x.shape[3], x.dtype), window, False)


def activate(x: Images, bias: Float[Array, "channels"], window: int | Window = 1) -> Images:
    """Adds a bias to each channel, applies ReLU, and takes the largest of each window as `max_pool`
    does.

    >>> activate(
    ...     jnp.array([[1.0, -4.0], [3.0, -9.0]]).reshape(1, 2, 1, 2), jnp.array([0.5, 2.0]), (2, 1)
    ... ).ravel().tolist()
    [3.5, 0.0]
    """
    return _apply_pool(x, bias, window, True)


def _apply_pool(
    x: Images, bias: Float[Array, "channels"], window: int | Window, relu: bool
) -> Images:
    window = check_window(window)
    images, offsets = aligned(x[None], bias[None])
    native = choose(images, offsets)
    return pool_p.bind(
        images, offsets, size=(x.shape[1], x.shape[2]), window=window, relu=relu, native=native
    )[0][0]


def check_window(window: int | Window) -> Window:
    """Returns rows and columns of a window that may be given by one number.

    Raises:
        InvalidInput: less than 1, or too many pixels for the type of the winners.
    """
    window = (window, window) if isinstance(window, int) else window
    if min(window) < 1 or window[0] * window[1] > 250:
        raise InvalidInput.of(
            "max_pool(window=...)", window, "at least 1, and no more than 250 pixels together"
        )
    return window


def _split_windows(x: Any, window: Window) -> Any:
    """Splits images into windows, shape (group, example, tall, height, wide, width, channel)."""
    groups, batch, rows, columns, channels = x.shape
    tall, wide = rows // window[0], columns // window[1]
    # rows and columns that fill no window are cut off
    cropped = x[:, :, : tall * window[0], : wide * window[1]]
    return cropped.reshape(groups, batch, tall, window[0], wide, window[1], channels)


def _window_pixels(x: Any, window: Window) -> list[Any]:
    windows = _split_windows(x, window)
    return [
        windows[:, :, :, k // window[1], :, k % window[1]] for k in range(window[0] * window[1])
    ]


def _broadcast_bias(bias: Any) -> Any:
    return bias[:, None, None, None, :]


def _pool(x: Any, bias: Any, *, size: Window, window: Window, relu: bool) -> list[Any]:
    largest = _split_windows(x, window).max((3, 5))
    # from the last pixel backwards: of equal ones the first stays
    winner = jnp.full(largest.shape, window[0] * window[1] - 1, jnp.uint8)
    for k, pixels in reversed(list(enumerate(_window_pixels(x, window)[:-1]))):
        winner = jnp.where(pixels == largest, jnp.uint8(k), winner)
    value = largest + _broadcast_bias(bias)
    if not relu:
        return [value, winner]
    return [jax.nn.relu(value), jnp.where(value <= 0, jnp.uint8(FLAT), winner)]


def _tangent(
    x: Any, bias: Any, winner: Any, *, size: Window, window: Window, relu: bool
) -> list[Any]:
    # a bias moves nothing where ReLU is flat
    total = jnp.where(
        winner == FLAT,
        jnp.zeros_like(bias, shape=()),
        jnp.broadcast_to(_broadcast_bias(bias), winner.shape),
    )
    # FLAT is no number of a pixel, so nothing passes there
    for k, pixels in enumerate(_window_pixels(x, window)):
        total = total + jnp.where(winner == k, pixels, jnp.zeros_like(pixels))
    return [total]


def _gradient(gradient: Any, winner: Any, *, size: Window, window: Window, relu: bool) -> list[Any]:
    groups, batch, tall, wide, channels = gradient.shape
    pixel_ids = jnp.arange(window[0] * window[1], dtype=jnp.uint8).reshape(
        1, 1, 1, window[0], 1, window[1], 1
    )
    # (group, example, tall, height, wide, width, channel), as in `_split_windows`
    is_winner = winner[:, :, :, None, :, None, :] == pixel_ids
    image = jnp.where(is_winner, gradient[:, :, :, None, :, None, :], jnp.zeros((), gradient.dtype))
    image = image.reshape(groups, batch, tall * window[0], wide * window[1], channels)
    # zeros for the rows and columns that no window had
    missing = [(0, 0), (0, 0), *((0, n - m) for n, m in zip(size, image.shape[2:4])), (0, 0)]
    image = jnp.pad(image, missing) if any(pair[1] for pair in missing) else image
    active = jnp.where(winner == FLAT, jnp.zeros((), gradient.dtype), gradient)
    # without the barrier, XLA computes it again for everything that needs it
    return [lax.optimization_barrier(image), active.sum((1, 2, 3))]


def _pool_results(x: Any, *_: Any, window: Window, **__: Any) -> list[Result]:
    shape = (*x.shape[:2], x.shape[2] // window[0], x.shape[3] // window[1], x.shape[4])
    return [Result(shape, x.dtype), Result(shape, "uint8")]


def _tangent_results(*operands: Any, **params: Any) -> list[Result]:
    return _pool_results(*operands, **params)[:1]


def _gradient_results(gradient: Any, _: Any, *, size: Window, **__: Any) -> list[Result]:
    groups, batch, _, _, channels = gradient.shape
    return [
        Result((groups, batch, *size, channels), gradient.dtype),
        Result((groups, channels), gradient.dtype, False),
    ]


def _make_numbers(kind: int) -> Any:
    return lambda *_, window, relu, **__: [kind, *window, int(relu)]


pool_p = primitive(
    "fedax_pool", _pool_results, _pool, ("fedax_pool", _make_numbers(0)), (True, False)
)
gradient_p = primitive(
    "fedax_pool_gradient",
    _gradient_results,
    _gradient,
    ("fedax_pool", _make_numbers(1)),
    (True, True),
)
tangent_p = primitive(
    "fedax_pool_tangent",
    _tangent_results,
    _tangent,
    ("fedax_pool", _make_numbers(2)),
    (True, False, True),
)
batch_by(pool_p, (1, None), (1, 1))
batch_by(tangent_p, (1, None, 1), (1,))
in_groups(gradient_p)


def _pool_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    out, winner = pool_p.bind(*primals, **params)
    (tangent,) = tangent_p.bind(*map(ad.instantiate_zeros, tangents[:2]), winner, **params)
    # winners are whole numbers, whose tangents have the type float0
    return [out, winner], [tangent, ad.Zero(jax.typeof(winner).update(dtype=jax.dtypes.float0))]


def _tangent_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    (dx, dbias, _), winner = tangents, primals[2]
    (tangent,) = tangent_p.bind(
        ad.instantiate_zeros(dx), ad.instantiate_zeros(dbias), winner, **params
    )
    return tangent_p.bind(*primals, **params), [tangent]


def _gradient_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    return gradient_p.bind(*primals, **params), gradient_p.bind(
        ad.instantiate_zeros(tangents[0]), primals[1], **params
    )


def _tangent_transpose(cotangents: Any, x: Any, bias: Any, winner: Any, **params: Any) -> Any:
    (cotangent,) = cotangents
    if isinstance(cotangent, ad.Zero):
        return [None, None, None]
    gradients = gradient_p.bind(cotangent, winner, **params)
    return [
        gradient if ad.is_undefined_primal(x) else None for gradient, x in zip(gradients, (x, bias))
    ] + [None]


def _gradient_transpose(cotangents: Any, gradient: Any, winner: Any, **params: Any) -> Any:
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [None, None]
    return [tangent_p.bind(*map(ad.instantiate_zeros, cotangents), winner, **params)[0], None]


ad.primitive_jvps[pool_p] = _pool_jvp
ad.primitive_jvps[tangent_p] = _tangent_jvp
ad.primitive_jvps[gradient_p] = _gradient_jvp
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[gradient_p] = _gradient_transpose
