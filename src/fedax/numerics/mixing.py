"""Mixing of messages on a graph."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fedax.utils.random import Index

DENSE = 8
"""Dense products pay off from 1/DENSE of all clients as neighbours on (measured on a CPU)."""


def mixed(
    rows: PyTree, neighbours: Int[Array, "some width"], weights: Float[Array, "some width"]
) -> PyTree:
    """Mixes the messages of some clients' neighbours.

    From the rows of all clients, the neighbours, and the weights of these.
    """
    some, width = neighbours.shape
    clients = jax.tree.leaves(rows)[0].shape[0]
    dense = width * DENSE >= clients
    if dense:
        indices = jnp.arange(some, dtype=neighbours.dtype)[:, None]
        matrix = jnp.zeros((some, clients), weights.dtype).at[indices, neighbours].add(weights)

    def mix_leaf(x: Array) -> Array:
        flat = x.reshape(clients, -1)
        if dense:
            return (matrix.astype(x.dtype) @ flat).reshape(some, *x.shape[1:])

        def term(k: Index) -> Array:
            return weights[:, k].astype(x.dtype)[:, None] * flat.at[neighbours[:, k]].get(
                mode="promise_in_bounds"
            )

        unroll = max(1, min(8, width - 1))  # rows of many neighbours must not make a long program
        total = jax.lax.fori_loop(
            1, width, lambda k, total: total + term(k), term(0), unroll=unroll
        )
        return total.reshape(some, *x.shape[1:])

    return jax.tree.map(mix_leaf, rows)
