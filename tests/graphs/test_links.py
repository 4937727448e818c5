"""Links that fail: statistics, sums, runs."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import fedax
from fedax.algorithms.decentralized.pushsum import Pushed
from fedax.core import InvalidInput
from fedax.graphs import Graph
from fedax.utils.random import stream
from problems import regression
from transcription import LR, World

SCHEDULE = fedax.Schedule(epochs=2, batch_size=4, order="given")
ONE = fedax.Simulation(devices=1)
PATH = Graph.of(nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (1, 3)]))
CIRCLE = nx.cycle_graph(5, nx.DiGraph)
ONE_WAY = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3)])
ROUNDS = 6
SEED = 7
ROOT = jax.random.fold_in(jax.random.key(SEED), 1)


def run(method, task=None, rounds=ROUNDS, engine=ONE, schedule=SCHEDULE, **options):
    options = {"observe_every": max(rounds, 1), "seed": SEED, "solver": fedax.SGD(LR), **options}
    return fedax.run(
        method, task or regression(), schedule=schedule, engine=engine, rounds=rounds, **options
    )


def nodes(method, history):
    return np.asarray(method.nodes(history.state).all())


def weights_of(graph, t):
    """The matrix of a round as the run of `SEED` draws it."""
    neighbours, weights = graph.at(t, stream(ROOT, "links", t, 0))
    w = np.zeros((graph.clients, graph.clients))
    np.add.at(w, (np.arange(graph.clients)[:, None], np.asarray(neighbours)), np.asarray(weights))
    return w


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "sums"),
    [
        (PATH.lossy(0.2, "receiver"), "row"),
        (PATH.lossy(0.2, "both"), "both"),
        (Graph.directed(ONE_WAY).lossy(0.3, "sender"), "column"),
    ],
)
def test_sums_stay_as_declared(graph, sums):
    """Over many rounds."""
    assert graph.sums == sums
    for t in range(25):
        w = weights_of(graph, t)
        assert w.min() >= 0
        if sums != "column":
            np.testing.assert_allclose(w.sum(1), 1, rtol=1e-12)
        if sums != "row":
            np.testing.assert_allclose(w.sum(0), 1, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "graph",
    [Graph.directed(ONE_WAY).lossy(0.3, "sender")],
)
def test_push_sum_stays_unbiased(graph):
    """Flat losses: clients that start apart and only talk end at the mean."""

    class Push(fedax.PushSum):
        def init(self, fed, w):
            one = jnp.ones((), w.dtype)
            return fed.client_states(lambda k: Pushed(jnp.full_like(w, k), one))

    task = fedax.Task(np.zeros(1), lambda w, x: 0 * (x @ w), [np.ones((2, 1))] * 5)
    method = Push(graph=graph)
    found = nodes(method, run(method, task, rounds=250))
    np.testing.assert_allclose(found[:, 0], 2.0, atol=1e-9)


HARD = PATH.lossy(0.3, "both")


@pytest.mark.slow
def test_transcription():
    """DFedAvgM in NumPy: nodes mix with the weights that are left."""
    world = World()
    x = np.tile(World().start, (5, 1))
    for t in range(ROUNDS):
        x = weights_of(HARD, t) @ np.array([world.sgd(k, x[k])[0] for k in range(5)])
    messages = ROUNDS * ((PATH.matrix() > 0) & ~np.eye(5, dtype=bool)).sum()
    method = fedax.DFedAvgM(graph=HARD)
    history = run(method)
    np.testing.assert_allclose(nodes(method, history), x, rtol=0, atol=1e-12)
    assert history.bits.up.sum() == 64 * 4 * messages


@pytest.mark.slow
@pytest.mark.parametrize("kind", [fedax.PushSum])
def test_every_engine_draws_the_same(kind):
    method = kind(graph=HARD)
    two = fedax.Simulation(devices=2)
    runs = [
        nodes(method, run(method, engine=engine, rounds=3)) for engine in (ONE, two, fedax.Eager())
    ]
    for other in runs[1:]:
        np.testing.assert_allclose(other, runs[0], rtol=0, atol=1e-12)


def test_rules_of_availability_that_a_graph_ignores_are_refused(tmp_path):
    """Before anything is written."""
    schedule = fedax.Schedule(epochs=1, conditions={"availability": fedax.core.Daily(0.5)})
    with pytest.raises(InvalidInput, match="availability="):
        run(fedax.DFedAvgM(graph=PATH), schedule=schedule, checkpoint=tmp_path / "run")
    assert not any(tmp_path.iterdir())
