"""Graphs and mixing matrices against their definitions and known spectra."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from fedax.graphs import TOPOLOGIES, Graph, mixed

MADE = [Graph.named(name, 12) for name in TOPOLOGIES if name != "isolated"] + [
    Graph.random_regular(12, 3, seed=1),
    Graph.erdos_renyi(12, 0.3, seed=1),
    Graph.of(nx.petersen_graph(), "max_degree"),
]


@pytest.mark.parametrize("graph", MADE, ids=lambda graph: graph.name)
def test_definition_of_a_mixing_matrix(graph):
    """Def. 1: support on the links, symmetric, null(I - W) = span(1), I >= W > -I; and rows that
    sum to one."""
    w = graph.matrix()
    m = graph.clients
    spectrum = np.linalg.eigvalsh(w)
    np.testing.assert_array_equal(w, w.T)
    np.testing.assert_allclose(w.sum(0), 1, atol=1e-15 * m, rtol=0)
    assert np.linalg.matrix_rank(np.eye(m) - w) == m - 1
    assert spectrum[0] > -1
    assert spectrum[-1] <= 1 + 1e-12
    linked = nx.to_numpy_array(graph.network()) > 0
    assert np.array_equal((w > 0) & ~np.eye(m, dtype=bool), linked)
    assert np.array_equal(np.asarray(graph.degrees)[0], linked.sum(1))
    assert graph.lam == pytest.approx(max(abs(spectrum[0]), spectrum[-2]), abs=1e-12)


def test_ring_of_twenty():
    """Weights 1/3 and eigenvalues (1 + 2 cos(2 pi k / 20)) / 3: lambda = 0.96737, the lowest
    -1/3."""
    for mixing in ("metropolis_hastings", "max_degree"):
        ring = Graph.ring(20, mixing=mixing)
        exact = np.sort((1 + 2 * np.cos(2 * np.pi * np.arange(20) / 20)) / 3)
        np.testing.assert_allclose(np.linalg.eigvalsh(ring.matrix()), exact, atol=1e-14, rtol=0)
        np.testing.assert_allclose(ring.weights, 1 / 3, rtol=1e-15)
        assert round(ring.lam, 5) == 0.96737


def test_known_matrices():
    np.testing.assert_allclose(Graph.complete(5).matrix(), 0.2, rtol=1e-15)
    np.testing.assert_array_equal(Graph.isolated(3).matrix(), np.eye(3))
    star = np.eye(4) * 0.75
    star[0] = 0.25
    star[:, 0] = 0.25
    np.testing.assert_allclose(Graph.star(4).matrix(), star, rtol=1e-15)
    path = nx.path_graph(3)  # degrees 1, 2, 1
    np.testing.assert_allclose(
        Graph.of(path).matrix(), np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3, rtol=1e-15
    )


def test_topologies():
    assert np.asarray(Graph.torus(12).degrees).tolist() == [[4] * 12]
    assert sorted(np.asarray(Graph.grid(6).degrees)[0].tolist()) == [2, 2, 2, 2, 3, 3]
    neighbours = Graph.exponential(16).network().neighbors(0)
    assert sorted(neighbours) == [1, 2, 4, 8, 12, 14, 15]
    assert np.asarray(Graph.random_regular(10, 3).degrees).tolist() == [[3] * 10]
    same = [Graph.erdos_renyi(9, 0.4, seed=s).matrix() for s in (0, 0, 1)]
    assert np.array_equal(same[0], same[1])
    assert not np.array_equal(same[0], same[2])


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_small_populations(name):
    for clients in (1, 2, 3):
        assert Graph.named(name, clients).clients == clients


@pytest.mark.parametrize(
    "graph", [Graph.star(12), Graph.ring(200), Graph.random_regular(200, 20)], ids=lambda g: g.name
)
def test_mixing_is_the_matrix_product(graph):
    """Dense and by neighbour lists."""
    rng = np.random.default_rng(0)
    rows = {
        "a": rng.normal(size=(graph.clients, 7)),
        "b": rng.normal(size=(graph.clients, 2, 3)),
        "c": rng.normal(size=graph.clients),
    }
    found = mixed({name: jnp.asarray(value) for name, value in rows.items()}, *graph.at(0))
    for name, value in rows.items():
        np.testing.assert_allclose(
            found[name], np.tensordot(graph.matrix(), value, 1), atol=1e-14, rtol=0
        )


def test_sequence():
    """Two matchings of a ring of four; their product over a period is the mean, so lambda is 0."""
    a = Graph.of(nx.Graph([(0, 1), (2, 3)]), connected=False)
    crossed = nx.empty_graph(4)
    crossed.add_edges_from([(0, 2), (1, 3)])
    both = Graph.sequence([a, Graph.of(crossed, connected=False)])
    assert both.period == 2
    assert both.lam < 1e-7
    assert np.array_equal(both.matrix(3), both.matrix(1))
    rows = jnp.arange(4.0)[:, None]
    np.testing.assert_allclose(mixed(mixed(rows, *both.at(4)), *both.at(5)), 1.5, rtol=1e-15)
    assert Graph.sequence([Graph.ring(6), Graph.complete(6)]).matrix(1)[0, 3] == pytest.approx(
        1 / 6
    )


def test_renumbered():
    order = [3, 0, 4, 2, 1]
    graph = Graph.of(nx.path_graph(5))
    np.testing.assert_array_equal(
        graph.renumbered(order).matrix(), graph.matrix()[np.ix_(order, order)]
    )


CYCLES = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3)])
"""Client 0 sends to three others, everybody else to one."""


@pytest.mark.parametrize("stochastic", ["column", "row"])
def test_directed_graphs(stochastic):
    """Edges carry messages from u to v; senders divide by their receivers, or receivers average
    what they hear."""
    graph = Graph.directed(CYCLES, stochastic)
    links = nx.to_numpy_array(CYCLES, nodelist=range(5)).T + np.eye(5)  # entry (i, l): i hears l
    expected = (
        links / links.sum(0, keepdims=True)
        if stochastic == "column"
        else links / links.sum(1, keepdims=True)
    )
    np.testing.assert_allclose(graph.matrix(), expected, rtol=1e-15)
    assert graph.sums == stochastic
    assert set(graph.network().edges) == set(CYCLES.edges)
    order = [3, 0, 4, 2, 1]
    np.testing.assert_allclose(
        graph.renumbered(order).matrix(), expected[np.ix_(order, order)], rtol=1e-15
    )


@pytest.mark.slow
@pytest.mark.parametrize("repair", ["sender", "both"])
def test_losses(repair):
    """The share of lost messages, the sums that are kept, and that links fail one by one, or in
    both directions."""
    graph = Graph.random_regular(10, 4).lossy(0.3, repair)
    assert graph.sums == {"receiver": "row", "sender": "column", "both": "both"}[repair]
    w = Graph.random_regular(10, 4).matrix()
    lost = 0
    one_way = 0
    for t in range(60):
        neighbours, weights = graph.at(t, jax.random.key(t))
        found = np.zeros((10, 10))
        np.add.at(found, (np.arange(10)[:, None], np.asarray(neighbours)), np.asarray(weights))
        gone = (w > 0) & (found == 0)
        lost = lost + gone.sum()
        one_way = one_way + (gone & ~gone.T).sum()
        same = (found > 0) & ~np.eye(10, dtype=bool)
        np.testing.assert_allclose(found[same], w[same], rtol=1e-12)
        if repair != "sender":
            np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
        if repair != "receiver":
            np.testing.assert_allclose(found.sum(0), 1, rtol=1e-12)
    links = (w > 0).sum() - 10
    assert abs(lost / (60 * links) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / (60 * links) * 2)
    assert (one_way == 0) == (repair == "both")
    kept = graph.at(0)[1]
    np.testing.assert_array_equal(kept, graph.weights[0])
