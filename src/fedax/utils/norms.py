"""Lengths of vectors whose squares do not fit into their float type."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.utils.layout import accumulator

_SAFE = 40
"""Powers of two within which squares, and sums of squares, are far from the ends of float32."""


def power_of_two(largest: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""Returns a power of two near the largest entry of a vector.

    1 where squares are safe without it.

    Dividing by it is exact. 1 for 0 and for what is not finite, and between $2^{-40}$ and $2^{40}$,
    so that usual vectors keep their bits.
    """
    exponent = jnp.frexp(largest)[1]
    is_safe = (jnp.abs(exponent) <= _SAFE) | ~jnp.isfinite(largest) | (largest == 0)
    info = jnp.finfo(largest.dtype)
    exponent = jnp.clip(exponent, info.minexp + 4, info.maxexp - 2)  # the power itself has to fit
    return jnp.where(is_safe, 1, jnp.ldexp(jnp.ones_like(largest), jnp.where(is_safe, 0, exponent)))


def scale_of(v: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Returns `power_of_two` of the largest absolute entry.

    Args:
        v: an array.
        axis: over which the largest is taken, None for all.
        keepdims: whether that axis stays, of length 1.
    """
    return power_of_two(jnp.max(jnp.abs(v), axis=axis, keepdims=keepdims, initial=0))


def lengths(rows: Float[Array, "rows dim"]) -> Float[Array, "rows"]:
    """Returns the length of every row, whatever those of the others are, in `accumulator` of the
    type.

    >>> [f"{length:.3g}" for length in lengths(jnp.asarray([[3e30, 4e30], [3e-30, 4e-30]]))]
    ['5e+30', '5e-30']
    """
    rows = rows.astype(accumulator(rows.dtype))
    scale = scale_of(rows, axis=1)
    return scale * jnp.linalg.norm(rows / scale[:, None], axis=1)


def unit(v: Float[Array, "dim"]) -> Float[Array, "dim"]:
    """Returns a vector divided by its length, whatever that is; 0 stays 0."""
    v = v / scale_of(v)
    square = v @ v
    return v / jnp.sqrt(jnp.where(square > 0, square, 1))
