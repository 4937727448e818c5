"""Random streams, named and never split.

A stream is `fold_in(root, round, client, purpose, occurrence)`: what a client draws depends on
nothing else. Order of clients, number of devices, chunk size, evaluation cadence and observers
therefore cannot change a trajectory, and two algorithms that run with the same seed see the same
cohorts and the same minibatches (common random numbers).

The occurrence counts how often the *same* work function has run in this round. Two different work
functions of one round share the streams of a client, which is what methods with two passes over the
same minibatches need; a second pass of the same function draws from other streams.
"""

import zlib
from typing import TypeAlias

import jax
from jaxtyping import Array, Int, Key

Index: TypeAlias = int | Int[Array, ""]
"""A whole number, concrete or traced."""
MOST_SEED = 2**32 - 1
"""The largest seed: JAX takes larger ones modulo 2^32, so that two of them would be one."""


def stream(root: Key[Array, ""], *path: str | Index) -> Key[Array, ""]:
    """Returns the key at the end of a path of names and numbers below `root`.

    >>> import jax
    >>> bool(stream(jax.random.key(0), "cohort", 3) == stream(jax.random.key(0), "cohort", 3))
    True
    """
    for element in path:
        root = jax.random.fold_in(
            root, zlib.crc32(element.encode()) if isinstance(element, str) else element
        )
    return root
