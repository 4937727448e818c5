"""Graphs, links and codecs that cannot be: what the error names."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from scipy.linalg import block_diag

import fedax
from fedax import codecs
from fedax.core import InvalidInput
from fedax.graphs import Graph

SKEW = np.array([[0.5, 0.4], [0.5, 0.5]])
PATH = Graph.of(nx.path_graph(5))
CYCLES = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3)])
NAMED = nx.Graph([("berta", "anna"), ("berta", "carl")])


class Unknown(codecs.Identity):
    """An unbiased codec that declares no variance."""

    def relative_error(self, dim):
        return None


@pytest.mark.parametrize(
    ("field", "make"),
    [
        (r"4 parts .* clients \[\d\]", lambda: Graph.given(np.eye(4))),
        ("symmetric", lambda: Graph.given(SKEW)),
        ("sum to 1", lambda: Graph.given(np.full((2, 2), 0.4))),
        ("eigenvalue -1", lambda: Graph.given(1 - np.eye(2))),
        ("entries", lambda: Graph.given(np.array([[1.5, -0.5], [-0.5, 1.5]]))),
        ("square", lambda: Graph.given(np.ones((2, 3)))),
        ("finite", lambda: Graph.given([[np.nan]])),
        ("2 parts", lambda: Graph.of(nx.Graph([(0, 1), (2, 3)]))),
        ("DiGraph", lambda: Graph.of(nx.DiGraph([(0, 1)]))),
        ("order=", lambda: Graph.of(NAMED)),
        ("order=", lambda: Graph.of(NAMED, order=["anna", "anna", "carl"])),
        ("'ring'", lambda: Graph.named("rung", 4)),
        ("connected", lambda: Graph.erdos_renyi(40, 1e-6)),
        (r"\[3, 4\]", lambda: Graph.sequence([Graph.ring(3), Graph.ring(4)])),
        ("3 parts", lambda: Graph.sequence([Graph.isolated(3)])),
        ("order", lambda: Graph.ring(3).renumbered([0, 0, 1])),
        ("4 clients", lambda: Graph.ring(3).check_population(4)),
        ("strongly connected", lambda: Graph.directed(nx.DiGraph([(0, 1), (1, 2)]))),
        ("directed", lambda: Graph.directed(nx.cycle_graph(4))),
        ("=", lambda: Graph.directed(CYCLES).lossy(0.1, "both")),
        ("lam", lambda: Graph.directed(CYCLES).lam),
        ("lam", lambda: Graph.ring(5).lossy(0.1, "both").lam),
        ("sequence", lambda: Graph.sequence([PATH.lossy(0.1), PATH])),
        ("drop no", lambda: fedax.EXTRA(graph=PATH.lossy(0.1))),
        ("drop no", lambda: fedax.BEER(graph=PATH.lossy(0.1, repair="both"))),
        ("drops=", lambda: PATH.lossy(1.0)),
        ("step", lambda: codecs.Quantizer(b=1)),
        ("step|definition", lambda: codecs.QSGD(step=0.1)),
        ("'quantizer'", lambda: codecs.make_codec("quantiser")),
        ("'topk'", lambda: codecs.make_codec("topk", k=3)),
        ("codec=", lambda: codecs.EF21("topk")),
        ("feedback=False", lambda: codecs.EF21(codecs.TopK(0.1))),
        ("memory", lambda: codecs.EF21(codecs.EF21(codecs.RandK()))),
        ("unbiased", lambda: codecs.DIANA(codecs.Sign(feedback=False))),
        ("alpha=", lambda: codecs.DIANA(codecs.RandK(), 2.0)),
        ("Unknown", lambda: codecs.DIANA(Unknown())),
        ("codec", lambda: codecs.make_codec("ef21")),
        ("RandK", lambda: codecs.RandK(feedback=True)),
        ("Channel", lambda: codecs.EF21(codecs.RandK()).roundtrip(jax.random.key(0), jnp.ones(4))),
    ],
)
def test_what_cannot_be(field, make):
    with pytest.raises(InvalidInput, match=field):
        make()


def test_each_part_of_a_given_matrix_is_checked():
    """A pair that swaps has the eigenvalue -1, whatever another part has on its diagonal; a
    triangle without own weights has -1/2."""
    with pytest.raises(InvalidInput, match="the eigenvalue -1"):
        Graph.given(block_diag(np.full((2, 2), 0.5), 1 - np.eye(2)), connected=False)
    apart = block_diag((1 - np.eye(3)) / 2, 1)
    assert np.linalg.eigvalsh(Graph.given(apart, connected=False).matrix()).min() > -0.6
