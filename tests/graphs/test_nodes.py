"""Nodes of a graph are matched to clients by number or by name, not by the order in which they were
added."""

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedax.graphs import Graph


@settings(max_examples=25, deadline=None, database=None, derandomize=True)
@given(order=st.permutations(range(6)), seed=st.integers(0, 99), text=st.booleans())
def test_the_order_of_nodes_does_not_matter(order, seed, text):
    """A matrix has links where the graph has them, whatever the order of its nodes and edges."""
    plain = nx.path_graph(6)
    plain.add_edges_from(list(nx.gnp_random_graph(6, 0.3, seed).edges))
    names = [f"client{i}" for i in range(6)] if text else list(range(6))
    network = nx.Graph()
    network.add_nodes_from(names[i] for i in order)
    network.add_edges_from((names[a], names[b]) for a, b in plain.edges)
    found = Graph.of(network, order=names if text else None).matrix()
    assert np.array_equal(found, Graph.of(plain).matrix())
    assert np.array_equal(found > 0, nx.to_numpy_array(plain, nodelist=range(6)) + np.eye(6) > 0)
