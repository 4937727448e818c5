"""Mixing of messages on a graph: matrices, weights of links, and the mixed messages."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedax.errors import InvalidInput
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
        raise InvalidInput.found(
            field, f"entries {w[i, j]:g} and {w[j, i]:g} at ({i}, {j})", "symmetric matrices"
        )
    sums = w.sum(1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > TOLERANCE:
        raise InvalidInput.found(
            field, f"sum {sums[worst]:g} of row {worst}", "rows and columns that sum to 1"
        )
    if w.min() < 0:
        i, j = (int(k) for k in np.unravel_index(w.argmin(), w.shape))
        raise InvalidInput.found(field, f"entry {w[i, j]:g} at ({i}, {j})", "entries >= 0")


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


def rows(neighbours: np.ndarray, weights: np.ndarray) -> list[dict[int, float]]:
    """Returns the inverse of `tables` for one round: the weights of each client's neighbours, its
    own first.
    """
    linked = neighbours != neighbours[:, :1]
    each = zip(neighbours, weights, linked, strict=True)
    return [
        {i: float(w[0]), **dict(zip(n[on].tolist(), w[on].tolist()))}
        for i, (n, w, on) in enumerate(each)
    ]


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


def network_rows(links: list[list[int]], mixing: str) -> list[dict[int, float]]:
    """Returns the rows of an undirected graph's mixing matrix, from each client's neighbours."""
    weigh = MIXINGS[mixing]([len(neighbours) for neighbours in links])
    rows = [{i: 1.0, **{j: weigh(i, j) for j in neighbours}} for i, neighbours in enumerate(links)]
    for i, row in enumerate(rows):
        row[i] = 1.0 - sum(weight for j, weight in row.items() if j != i)
    return rows


def check_connected(rows: list[dict[int, float]], name: str, connected: bool) -> None:
    """Raises `InvalidInput` for rows of a graph in several parts, or with the eigenvalue -1.

    Perron and Frobenius: a connected graph has the eigenvalue 1 once, and -1 only if it is
    bipartite without own weights. A graph in several parts has the eigenvalues of all of them.

    Args:
        rows: of a symmetric stochastic matrix.
        name: of the graph.
        connected: False allows several parts.
    """
    support = nx.Graph([(i, j) for i, row in enumerate(rows) for j in row])
    components = list(nx.connected_components(support))
    if connected and len(components) > 1:
        smallest = min(components, key=len)
        raise InvalidInput.found(
            name,
            f"{len(components)} parts, one of them the clients {sorted(smallest)[:5]}",
            "connected graphs",
            "Add links.",
        )
    # `rows` list the own weight even where it is 0, which is no link
    support.remove_edges_from(list(nx.selfloop_edges(support)))
    for component in components:
        if max(rows[i][i] for i in component) <= 0 and nx.is_bipartite(support.subgraph(component)):
            whose = f" of the clients {sorted(component)[:5]}" if len(components) > 1 else ""
            raise InvalidInput.found(
                name,
                f"the eigenvalue -1{whose}",
                "matrices with I >= W > -I",
                "Add weights on the diagonal.",
            )


def check_connected_in_time(steps: list[list[dict[int, float]]], field: str, hint: str) -> None:
    """Raises `InvalidInput` for rounds whose links together do not connect the clients, strongly if
    some links go one way.

    What one round does not reach, a later one may.

    Args:
        steps: rows of each round of the period.
        field, hint: for the message.
    """
    # from sender to receiver: row i lists the clients that i hears, itself among them
    union = nx.DiGraph([(j, i) for rows in steps for i, row in enumerate(rows) for j in row])
    if nx.is_strongly_connected(union):
        return
    parts = nx.number_weakly_connected_components(union)
    if parts > 1:
        raise InvalidInput.found(field, f"{parts} parts that never meet", "one part", hint)
    got = "clients that some others never hear of"
    raise InvalidInput.found(field, got, "strongly connected graphs", hint)


def sides(clients: int) -> tuple[int, int]:
    """Returns the most square factors of a number."""
    shorter = next(k for k in range(int(clients**0.5), 0, -1) if clients % k == 0)
    return shorter, clients // shorter


def _metropolis_hastings(degrees: list[int]) -> Callable[[int, int], float]:
    return lambda i, j: 1 / (1 + max(degrees[i], degrees[j]))


def _max_degree(degrees: list[int]) -> Callable[[int, int], float]:
    most = max(degrees)
    return lambda i, j: 1 / (1 + most)


MIXINGS = {"metropolis_hastings": _metropolis_hastings, "max_degree": _max_degree}
"""Weights of the links, from the degrees."""
