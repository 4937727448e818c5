"""Random permutation of a client's examples for an epoch, independent of padding."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fedax.ops.extension import call, status
from fedax.utils.random import Index

SMALL = 1 << 16
"""Size up to which 16 random bits and the position share one 32-bit word.

Sorting one array of words is four times faster.
"""


# `inline` makes it part of a surrounding program; outside of one it compiles to one program rather
# than one per operation
@functools.partial(jax.jit, static_argnames="width", inline=True)
def permutation(key: Key[Array, ""], size: Index, width: int) -> Int[Array, "width"]:
    """Returns a random permutation of 0 to size - 1, then padding.

    It is the same for every `width` >= `size`.

    Positions are sorted by random words. With at most `SMALL` examples the words have 16 bits, and
    a tie (of probability 2^-16 a pair) keeps the given order.
    """
    if _is_native(key, width):
        operands = jax.random.key_data(key), jnp.asarray(size, jnp.int32)
        layouts = [None, None]
        return call("fedax_shuffle", [0], operands, layouts, [(width,)], [None], [jnp.int32])[0]

    position = jnp.arange(width, dtype=jnp.uint32)
    words = jax.random.bits(key, (width,), jnp.uint32)
    # the position in the low bits makes words distinct, and tells where a sorted word came from
    coarse = (words >> 16) << 16
    last = jnp.uint32(0xFFFFFFFF)
    bound = jnp.asarray(size, jnp.uint32)
    if width <= SMALL:
        packed = jax.lax.sort(jnp.where(position < bound, coarse | position, last))
        return (packed & jnp.uint32(0xFFFF)).astype(jnp.int32)
    words = jnp.where(position < bound, jnp.where(bound <= SMALL, coarse, words), last)
    return jax.lax.sort((words, position), num_keys=1)[1].astype(jnp.int32)


def _is_native(key: Key[Array, ""], width: int) -> bool:
    """Returns whether the extension draws the same permutation: it knows the words of JAX's
    default generator only. A round of softmax regression takes 0.6 of the time with it.
    """
    is_default = (
        str(jax.random.key_impl(key)) == "threefry2x32"
        and jax.config.values["jax_threefry_partitionable"]
    )
    return is_default and width <= SMALL and jax.default_backend() == "cpu" and status().used


def permutation_by_size(
    key: Key[Array, ""], size: Index, largest: int, width: int
) -> Int[Array, "width"]:
    """Computes `permutation` at a cost that follows this client's size; `width` >= `largest`.

    Sorts at the next power of two, by a switch. Under `vmap` a switch runs all of its branches, so
    it is for one client at a time.
    """
    if _is_native(key, width):
        return permutation(key, size, width)
    # powers of two, so that a client pays at most for twice its size
    widths = [64]
    while widths[-1] < largest:
        widths.append(2 * widths[-1])
    widths[-1] = max(largest, 1)

    def branch(sorted_: int) -> Int[Array, "width"]:
        return jnp.pad(permutation(key, size, sorted_), (0, width - sorted_))

    if len(widths) == 1:
        return branch(largest)
    bucket = jnp.searchsorted(jnp.asarray(widths, jnp.int32), size)
    return jax.lax.switch(bucket, [lambda sorted_=sorted_: branch(sorted_) for sorted_ in widths])
