"""Mixing of messages on a graph: matrices, weights of links, and the mixed messages."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedax.errors import InvalidInput
from fedax.utils.arguments import checked_call
from fedax.utils.random import Index

TOLERANCE = 1e-9
"""The tolerance on sums and symmetry of a given matrix."""
DENSE = 8
"""Dense products pay off from 1/DENSE of all clients as neighbours on (measured on a CPU)."""


@checked_call
def mixed(rows: PyTree, neighbours: Int[Array, "some width"], weights: Float[Array, "some width"]) -> PyTree:
    """Mixes the messages of some clients' neighbours.

    From the rows of all clients, the neighbours, and the weights of these.
    """
    some, width = neighbours.shape
    clients = jax.tree.leaves(rows)[0].shape[0]
    dense = width * DENSE >= clients
    if dense:
        places = jnp.arange(some, dtype=neighbours.dtype)[:, None]
        matrix = jnp.zeros((some, clients), weights.dtype).at[places, neighbours].add(weights)

    def leaf(x: Array) -> Array:
        flat = x.reshape(clients, -1)
        if dense:
            return (matrix.astype(x.dtype) @ flat).reshape(some, *x.shape[1:])

        def term(k: Index) -> Array:
            return weights[:, k].astype(x.dtype)[:, None] * flat.at[neighbours[:, k]].get(mode="promise_in_bounds")

        unroll = max(1, min(8, width - 1))  # rows of many neighbours must not make a long program
        total = jax.lax.fori_loop(1, width, lambda k, total: total + term(k), term(0), unroll=unroll)
        return total.reshape(some, *x.shape[1:])

    return jax.tree.map(leaf, rows)


def check_mixing_matrix(w: np.ndarray, field: str) -> None:
    """Raises `InvalidInput` for a matrix that is no symmetric, stochastic one.

    It has to be square, finite, symmetric, stochastic and at least 0; `field` names it.
    """
    if w.ndim != 2 or w.shape[0] != w.shape[1] or not w.size:
        raise InvalidInput.found(field, f"shape {w.shape}", "square matrices")
    if not np.isfinite(w).all():
        raise InvalidInput.found(field, "NaN or infinity", "finite numbers")
    skew = np.abs(w - w.T)
    if skew.max() > TOLERANCE:
        i, j = (int(k) for k in np.unravel_index(skew.argmax(), w.shape))
        raise InvalidInput.found(field, f"entries {w[i, j]:g} and {w[j, i]:g} at ({i}, {j})", "symmetric matrices")
    sums = w.sum(1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > TOLERANCE:
        raise InvalidInput.found(field, f"sum {sums[worst]:g} of row {worst}", "rows and columns that sum to 1")
    if w.min() < 0:
        i, j = (int(k) for k in np.unravel_index(w.argmin(), w.shape))
        raise InvalidInput.found(field, f"entry {w[i, j]:g} at ({i}, {j})", "entries >= 0")


def _metropolis_hastings(degrees: list[int]) -> Callable[[int, int], float]:
    return lambda i, j: 1 / (1 + max(degrees[i], degrees[j]))


def _max_degree(degrees: list[int]) -> Callable[[int, int], float]:
    most = max(degrees)
    return lambda i, j: 1 / (1 + most)


MIXINGS = {"metropolis_hastings": _metropolis_hastings, "max_degree": _max_degree}
"""Weights of the links, from the degrees."""
