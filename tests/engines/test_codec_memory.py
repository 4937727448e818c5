"""Codecs whose messages are differences to a memory, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.codecs import DIANA, EF21, QSGD, RandK, TopK
from fedax.core import InvalidInput
from fedax.graphs import Graph
from fedax.utils.random import stream
from marks import quick, slow
from problems import quadratic, random_quadratic, regression, vector
from transcription import LR, ROUNDS, SCHEDULE, SEED, P, World

ONE = fedax.Simulation(devices=1)
CLIENTS = 4
DIM = 6
RATE = 0.3
A, B = random_quadratic(CLIENTS, DIM)
OPTIMUM = np.linalg.solve(A.sum(0), np.einsum("kij,kj->i", A, B))
FULL = fedax.Schedule(batch_size="full")
CODECS = {
    "EF21": EF21(TopK(0.4, feedback=False)),
    "DIANA": DIANA(RandK(0.5)),
}
every_codec = pytest.mark.parametrize("name", quick(CODECS, "DIANA"))


def top(v, k):
    kept = np.zeros_like(v)
    largest = np.argsort(-np.abs(v), kind="stable")[:k]
    kept[largest] = v[largest].astype(np.float32)
    return kept


def root():
    return jax.random.fold_in(jax.random.key(SEED), 1)


def places(t, k, count):
    """The random places of the first vector that client k sends in round t."""
    key = jax.random.fold_in(stream(root(), "client", t, k, 0, "uplink"), 0)
    return np.asarray(jax.random.permutation(key, jnp.arange(DIM, dtype=jnp.int32)))[:count]


def descend(codec, rounds, task=None, rate=RATE, **options):
    """Gradient descent on the quadratics, every client's step coded."""
    given = {"engine": ONE, "observe_every": rounds, "observe": [], "seed": SEED} | options
    return fedax.run(
        fedax.GD(),
        quadratic(A, B) if task is None else task,
        solver=fedax.SGD(rate),
        schedule=FULL,
        rounds=rounds,
        channel=fedax.Channel(up=codec),
        **given,
    )


def federate(codec, rounds=ROUNDS, **options):
    """FedAvg on the world of transcriptions, three of five clients a round."""
    given = {"engine": ONE, "observe_every": rounds, "seed": SEED, "solver": fedax.SGD(LR)}
    return fedax.run(
        fedax.FedAvg(),
        regression(),
        schedule=SCHEDULE,
        rounds=rounds,
        channel=fedax.Channel(up=codec),
        **given | options,
    )


def test_ef21_with_top_k_against_numpy():
    x = np.zeros(DIM)
    g = np.zeros((CLIENTS, DIM))
    for _ in range(30):
        steps = [-RATE * A[k] @ (x - B[k]) for k in range(CLIENTS)]
        g = g + np.array([top(step - mine, 2) for step, mine in zip(steps, g, strict=True)])
        x = x + g.mean(0)
    history = descend(EF21(TopK(2 / DIM, feedback=False)), 30)
    np.testing.assert_allclose(np.asarray(history.params), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(history.carry.lost[0].all()[0], g, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [CLIENTS * 2 * (32 + 3)] * 30


def test_ef21_from_exact_vectors_against_the_released_steps():
    """bdfg_distributed_stable.py: memories begin with the gradients; steps are of the model."""
    codec = EF21(TopK(2 / DIM, feedback=False))
    key = jax.random.key(0)
    x, gradients = np.zeros(DIM), lambda x: np.array([A[k] @ (x - B[k]) for k in range(CLIENTS)])
    g = mine = gradients(x)
    for _ in range(10):
        x = x - RATE * g.mean(0)
        sent = [
            codec.message_and_memory(jnp.asarray(v), jnp.asarray(memory), key)
            for v, memory in zip(gradients(x), mine, strict=True)
        ]
        g = g + np.array([top(row, 2) for row in gradients(x) - g])
        values, mine = (
            np.array(part) for part in ([m.value for m, _ in sent], [m for _, m in sent])
        )
        np.testing.assert_allclose(values, g, rtol=0, atol=1e-12)
        np.testing.assert_allclose(mine, g, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_ef21_divides_the_messages_of_unbiased_codecs():
    """As FL_PyTorch does; undivided, memories of RandK(2 / 6) would grow without bound."""
    x = np.zeros(DIM)
    g = np.zeros((CLIENTS, DIM))
    count = 2
    for t in range(30):
        for k in range(CLIENTS):
            some = places(t, k, count)
            sent = np.zeros(DIM)
            difference = -RATE * A[k] @ (x - B[k]) - g[k]
            sent[some] = (difference[some] * DIM / count).astype(np.float32)
            g[k] += sent / (1 + (DIM / count - 1))
        x = x + g.mean(0)
    history = descend(EF21(RandK(count / DIM)), 30)
    np.testing.assert_allclose(np.asarray(history.params), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(history.carry.lost[0].all()[0], g, rtol=0, atol=1e-12)
    reached = descend(EF21(RandK(count / DIM)), 300).params
    np.testing.assert_allclose(reached, OPTIMUM, rtol=0, atol=1e-8)


@pytest.mark.parametrize("alpha", [0.0, slow(0.2)])
def test_diana_with_rand_k_against_numpy(alpha):
    """Also with one memory at the server, as FL_PyTorch has it, where all clients take part."""
    x = np.zeros(DIM)
    h = np.zeros((CLIENTS, DIM))
    count = 2
    total = np.zeros(DIM)
    rate = alpha or count / DIM  # 1 / (1 + omega) with omega = d / k - 1
    for t in range(30):
        estimates, messages = np.zeros((2, CLIENTS, DIM))
        for k in range(CLIENTS):
            some = places(t, k, count)
            sent = np.zeros(DIM)
            difference = -RATE * A[k] @ (x - B[k]) - h[k]
            sent[some] = (difference[some] * DIM / count).astype(np.float32)
            estimates[k] = h[k] + sent
            messages[k] = sent
            h[k] += rate * sent
        np.testing.assert_allclose(estimates.mean(0), total + messages.mean(0), atol=1e-12)
        total = total + rate * messages.mean(0)
        x = x + estimates.mean(0)
    history = descend(DIANA(RandK(count / DIM), alpha), 30)
    np.testing.assert_allclose(np.asarray(history.params), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(history.carry.lost[0].all()[0], h, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [CLIENTS * 2 * (32 + 3)] * 30


PAIRS = {
    "DIANA": (DIANA(QSGD(b=2)), QSGD(b=2)),
    "EF21": (EF21(TopK(0.3, feedback=False)), TopK(0.3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(PAIRS, "DIANA"))
def test_memories_reach_the_optimum_where_codecs_alone_do_not(name):
    """Heterogeneous quadratics: at the optimum the clients' gradients do not vanish."""
    with_memory, alone = (
        np.abs(np.asarray(descend(codec, 300).params) - OPTIMUM).max() for codec in PAIRS[name]
    )
    assert with_memory < 1e-10
    assert alone > 1e-2


def test_absent_clients_keep_their_memory():
    """Three of five clients a round, whose changes are relative to the model sent down."""
    world = World()
    g = np.zeros((5, 4))
    w = world.start
    for cohort in world.cohorts():
        for k in cohort:
            g[k] += top(world.sgd(k, w)[0] - w - g[k], 2)
        w = w + np.average(g[cohort], axis=0, weights=P[cohort])
    history = federate(EF21(TopK(0.5, feedback=False)))
    np.testing.assert_allclose(vector(history), w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(history.carry.lost[0].all()[0], g, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [3 * 2 * (32 + 2)] * ROUNDS


@pytest.mark.slow
def test_memories_on_a_graph():
    """Neighbours add a node's message to the memory that they have of it."""
    graph = Graph.star(5)
    world = World()
    x = np.tile(world.start, (5, 1))
    g = np.zeros((5, 4))
    for _ in range(ROUNDS):
        trained = np.array([world.sgd(k, x[k])[0] for k in range(5)])
        g = g + np.array([top(row, 2) for row in trained - g])
        x = graph.matrix() @ g
    options = {"solver": fedax.SGD(LR), "schedule": SCHEDULE, "seed": SEED, "engine": ONE}
    channel = fedax.Channel(up=EF21(TopK(0.5, feedback=False)))
    history = fedax.run(
        fedax.DFedAvgM(graph=graph), regression(), rounds=ROUNDS, channel=channel, **options
    )
    np.testing.assert_allclose(vector(history), x.mean(0), rtol=0, atol=1e-12)
    changing = fedax.DFedAvgM(graph=Graph.sequence([Graph.star(5), Graph.ring(5)]))
    with pytest.raises(InvalidInput, match=r"Channel\(up=...\) .* graph changes"):
        fedax.run(changing, regression(), rounds=1, channel=channel, **options)


@every_codec
def test_a_run_is_resumed_to_the_same_bits(name, tmp_path):

    def go(rounds, **options):
        return descend(CODECS[name], rounds, observe_every=3, **options)

    straight = go(6)
    part = go(3, checkpoint=tmp_path / "a")
    resumed = go(6, resume=part)
    from_files = go(6, checkpoint=tmp_path / "a")
    for other in (resumed, from_files):
        assert np.array_equal(other.params, straight.params)
        assert jax.tree.all(
            jax.tree.map(np.array_equal, other.carry.lost[0].all(), straight.carry.lost[0].all())
        )
