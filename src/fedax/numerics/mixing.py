"""Mixing of messages on a graph: tables of neighbours with weights, and the mixed messages."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedax.utils.random import Index

TOLERANCE = 1e-9
"""The tolerance on sums and symmetry of a given matrix."""
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


def tables(steps: list[list[dict[int, float]]]) -> tuple[Array, np.ndarray]:
    """Neighbour lists and weights, padded to the most neighbours; each client's first neighbour is
    itself.
    """
    clients, width = len(steps[0]), max(len(row) for rows in steps for row in rows)
    neighbours = np.tile(np.arange(clients, dtype=np.int32)[None, :, None], (len(steps), 1, width))
    weights = np.zeros((len(steps), clients, width))
    for t, rows in enumerate(steps):
        for i, row in enumerate(rows):
            ordered = [i, *sorted(set(row) - {i})]
            neighbours[t, i, : len(ordered)] = ordered
            weights[t, i, : len(ordered)] = [row[j] for j in ordered]
    with jax.ensure_compile_time_eval():  # an algorithm may make its graph inside a round
        return jnp.asarray(neighbours), weights


def unit_sums(neighbours: np.ndarray, weights: np.ndarray, lost: str) -> str:
    """Returns which sums are 1 in all rounds: "both", those of each "row" or "column", or "none".

    Args:
        neighbours: tables of all rounds.
        weights: of the same shape.
        lost: who keeps the weights of lost messages; "both" also if none are lost.
    """
    columns = np.zeros(neighbours.shape[:2])
    np.add.at(columns, (np.arange(len(columns))[:, None, None], neighbours), weights)
    row = np.abs(weights.sum(2) - 1).max() <= TOLERANCE and lost != "sender"
    column = np.abs(columns - 1).max() <= TOLERANCE and lost != "receiver"
    return "both" if row and column else "row" if row else "column" if column else "none"
