"""The end of a residual block: the sum with the shortcut, through ReLU."""

import jax
import jax.numpy as jnp

from fedax.errors import InvalidInput
from fedax.ops.conv import Images


def join(x: Images, shortcut: Images, stride: int = 1) -> Images:
    r"""Computes $\max(x + s, 0)$ with s every stride-th pixel of the shortcut, and zeros in the
    channels that it lacks.

    This is option A of He et al. (arXiv:1512.03385, section 3.3).

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
    fits = stride >= 1 and x.shape[0] == shortcut.shape[0] and x.shape[3] >= shortcut.shape[3]
    if not fits or any(-(-shortcut.shape[k] // stride) != x.shape[k] for k in (1, 2)):
        raise InvalidInput.of(
            "join(x, shortcut, stride)",
            (x.shape, shortcut.shape, stride),
            "sizes of x that the stride makes of the shortcut's",
        )
    missing = x.shape[3] - shortcut.shape[3]
    pixels = jnp.pad(shortcut[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (0, missing)))
    return jax.nn.relu(x + pixels)
