"""Methods without a server against NumPy: limits, contraction, transcriptions, bits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import fedax
from fedax.algorithms.decentralized.gossip import Gossip
from fedax.communication.codecs import Identity, Quantizer, TopK
from fedax.core import Upload
from fedax.graphs import Graph
from marks import slow
from problems import SIZES, quadratic, regression, vector
from transcription import LR, World

SCHEDULE = fedax.Schedule(epochs=2, batch_size=4, order="given")
ONE = fedax.Simulation(devices=1)
ROUNDS = 5


@functools.cache
def path_of_five():
    return Graph.of(nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (1, 3)]))


def run(
    method, task=None, rounds=ROUNDS, momentum=0.0, schedule=SCHEDULE, engine=ONE, lr=LR, **options
):
    options = {"rounds": rounds, "observe_every": max(rounds, 1), "seed": 7, **options}
    solver = fedax.SGD(lr, momentum=momentum)
    return fedax.run(
        method, task or regression(), solver=solver, schedule=schedule, engine=engine, **options
    )


def nodes(method, history):
    """The clients' models, one in a row."""
    return np.asarray(method.nodes(history.state).all())


@pytest.mark.parametrize("method", [fedax.DSGD(), slow(fedax.PushSum())], ids=type)
def test_clients_use_their_own_models(method):
    history = run(method, rounds=2, personal=True)
    found = np.hstack([np.reshape(leaf, (5, -1)) for leaf in jax.tree.leaves(history.personal)])
    np.testing.assert_array_equal(found, nodes(method, history))
    assert np.ptp(found, axis=0).max() > 1e-3


class Averaging(Gossip):
    """After round 0 client i stands at the i-th unit vector; from then on everybody only
    averages."""

    def send(self, client, own):
        return Upload(own)

    def receive(self, client, own, received):
        unit = (jnp.arange(own.shape[0], dtype=jnp.int32) == client.index).astype(own.dtype)
        return jnp.where(client.round == 0, unit, received)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "clients", "devices"),
    [(Graph.ring, 31, 2), (Graph.star, 5, 1)],
    ids=["lists", "dense"],
)
def test_consensus_decays_at_lambda(kind, clients, devices):
    """The clients' models after t + 1 rounds are W^t; the mean stays, the disagreement is lambda^t
    times the first."""
    graph = kind(clients)
    task = quadratic(
        np.zeros((graph.clients, graph.clients, graph.clients)),
        np.zeros((graph.clients, graph.clients)),
    )
    method = Averaging(graph=graph)
    engine = fedax.Simulation(devices=devices)
    history = run(method, task, rounds=5, engine=engine)
    found = nodes(method, history)
    np.testing.assert_allclose(found, np.linalg.matrix_power(graph.matrix(), 4), rtol=0, atol=1e-14)
    np.testing.assert_allclose(vector(history), 1 / graph.clients, rtol=1e-12)
    assert np.linalg.norm(found - 1 / graph.clients, 2) == pytest.approx(graph.lam**4, rel=1e-10)


@pytest.mark.slow
def test_complete_graph_is_fedavg():
    task = regression(sizes=(8,) * 5)
    options = {"task": task, "momentum": 0.9, "lr": 0.01}
    method = fedax.DFedAvgM(topology="complete")
    history = run(method, **options)
    fedavg = run(fedax.FedAvg(), **options)
    np.testing.assert_allclose(vector(history), vector(fedavg), rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        nodes(method, history), np.tile(vector(fedavg), (5, 1)), rtol=0, atol=1e-12
    )


def test_no_links_is_isolated_training():
    method = fedax.DFedAvgM(topology="isolated")
    history = run(method)
    assert history.bits.total == 0
    np.testing.assert_allclose(
        nodes(method, history), trajectory(lambda x, z, t: z), rtol=0, atol=1e-12
    )


class Heavy(World):
    """Local training by the paper's eq. (4): y_{k+1} = y_k - eta g + theta (y_k - y_{k-1}), y_{-1}
    = y_0."""

    def train(self, k, y, theta):
        before = y
        for _ in range(2):
            for begin in range(0, SIZES[k], 4):
                y, before = (
                    y - LR * self.gradient(k, y, slice(begin, begin + 4)) + theta * (y - before),
                    y,
                )
        return y


def trajectory(step, theta=0.0):
    """Five rounds of `step(x, z, t)`, with z the locally trained models."""
    world = Heavy()
    x = np.tile(world.start, (5, 1))
    for t in range(ROUNDS):
        x = step(x, np.array([world.train(k, x[k], theta) for k in range(5)]), t)
    return x


def test_dfedavgm():
    """On a graph that changes."""
    graph = Graph.sequence([path_of_five(), Graph.ring(5), Graph.star(5)])
    method = fedax.DFedAvgM(graph=graph)
    history = run(method, momentum=0.6)
    expected = trajectory(lambda x, z, t: graph.matrix(t) @ z, theta=0.6)
    np.testing.assert_allclose(nodes(method, history), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(vector(history), expected.mean(0), rtol=0, atol=1e-12)
    degrees = [int((graph.matrix(t) > 0).sum()) - 5 for t in range(ROUNDS)]
    assert history.bits.up.tolist() == [64 * 4 * links for links in degrees]
    assert history.bits.down.tolist() == [0] * ROUNDS


def test_dsgd():
    method = fedax.DSGD(graph=path_of_five())
    expected = trajectory(lambda x, z, t: path_of_five().matrix() @ x + z - x)
    np.testing.assert_allclose(nodes(method, run(method)), expected, rtol=0, atol=1e-12)


def test_dgd_and_its_fixed_point():
    """Per step x <- W x - eta grad; the fixed point solves (I - W) X + eta (grad_i(x_i))_i = 0."""
    world = World()
    w = path_of_five().matrix()
    x = np.tile(world.start, (5, 1))
    for _ in range(ROUNDS):
        x = w @ x - LR * np.array([world.gradient(k, x[k]) for k in range(5)])
    method = fedax.DGD(graph=path_of_five())
    np.testing.assert_allclose(nodes(method, run(method)), x, rtol=0, atol=1e-12)
    a = np.array([1.0, 2.0, 3.0, 1.0, 2.0])
    b = np.arange(5.0)
    fixed = np.linalg.solve(np.eye(5) - w + 0.1 * np.diag(a), 0.1 * a * b)
    task = quadratic(a[:, None, None], b[:, None])
    found = nodes(method, run(method, task, rounds=600, lr=0.1))
    np.testing.assert_allclose(found[:, 0], fixed, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "steps", "rounds"),
    [
        (fedax.GradientTracking, 1, 400),
        (fedax.GTSGD, 3, 400),
        (fedax.EXTRA, 1, 400),
        (fedax.ExactDiffusion, 1, 400),
        (fedax.NIDS, 1, 400),
        (functools.partial(fedax.BEER, gamma=0.5), 1, 1500),
    ],
)
def test_the_exact_optimum(kind, steps, rounds):
    """Bowls of unequal curvature around 0 to 4: with a constant step, everybody ends at the minimum
    of their sum, which DGD misses."""
    a = np.array([1.0, 2.0, 3.0, 1.0, 2.0])
    b = np.arange(5.0)
    method = kind(graph=path_of_five())
    task = quadratic(a[:, None, None], b[:, None])
    schedule = fedax.Schedule(steps=steps, batch_size="full")
    found = nodes(method, run(method, task, rounds=rounds, schedule=schedule))
    np.testing.assert_allclose(found[:, 0], (a @ b) / a.sum(), rtol=0, atol=1e-10)


def test_gradient_tracking():
    """DIGing, eq. by eq."""
    world = World()
    w = path_of_five().matrix()
    x = np.tile(world.start, (5, 1))
    g = np.array([world.gradient(k, x[k]) for k in range(5)])
    y = g
    for _ in range(ROUNDS):
        x = w @ x - LR * y
        before = g
        g = np.array([world.gradient(k, x[k]) for k in range(5)])
        y = w @ y + g - before
    method = fedax.GradientTracking(graph=path_of_five())
    history = run(method)
    np.testing.assert_allclose(nodes(method, history), x, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [2 * 64 * 4 * (int((w > 0).sum()) - 5)] * ROUNDS


def test_gtadam():
    world = World()
    w = path_of_five().matrix()
    b1, b2, eps, most = (0.8, 0.95, 1e-3, 0.5)
    x = np.tile(world.start, (5, 1))
    m = np.zeros((5, 4))
    v = np.zeros((5, 4))
    g = np.array([world.gradient(k, x[k]) for k in range(5)])
    y = g
    bounded = 0
    for _ in range(ROUNDS):
        m = b1 * m + (1 - b1) * y
        v = np.minimum(b2 * v + (1 - b2) * y**2, most)
        bounded += (v == most).sum()
        x = w @ x - LR * m / (np.sqrt(v) + eps)
        before = g
        g = np.array([world.gradient(k, x[k]) for k in range(5)])
        y = w @ y + g - before
    assert bounded > 0
    method = fedax.GTAdam(graph=path_of_five(), b1=b1, b2=b2, eps=eps, most=most)
    np.testing.assert_allclose(nodes(method, run(method)), x, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_gtsgd():
    """DSGT with one minibatch a round; K-GT with an epoch of full batches, in the correction's
    form."""
    world = World()
    w = path_of_five().matrix()

    def first(x):
        return np.array([world.gradient(k, x[k], slice(0, 4)) for k in range(5)])

    x = np.tile(world.start, (5, 1))
    y = g = first(x)
    for _ in range(ROUNDS):
        x = w @ (x - LR * y)
        before = g
        g = first(x)
        y = w @ y + g - before
    method = fedax.GTSGD(graph=path_of_five())
    found = run(method, schedule=fedax.Schedule(steps=1, batch_size=4, order="given"))
    np.testing.assert_allclose(nodes(method, found), x, rtol=0, atol=1e-12)

    x = np.tile(world.start, (5, 1))
    c = np.zeros((5, 4))
    for _ in range(ROUNDS):
        z = x
        for _ in range(3):
            z = z - LR * (np.array([world.gradient(k, z[k]) for k in range(5)]) + c)
        d = (x - z) / (3 * LR)
        x = w @ z
        c = c - d + w @ d
    several = fedax.Schedule(steps=3, batch_size="full")
    np.testing.assert_allclose(nodes(method, run(method, schedule=several)), x, rtol=0, atol=1e-12)


@functools.cache
def one_way():
    links = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3)]
    return Graph.directed(nx.DiGraph(links))


@pytest.mark.slow
def test_push_sum():
    """The biased vector and the scalar are pushed along columns; the change of the de-biased model
    enters the biased one."""
    world = Heavy()
    w = one_way().matrix()
    x = np.tile(world.start, (5, 1))
    s = np.ones(5)
    for _ in range(ROUNDS):
        z = x / s[:, None]
        x = w @ (x + np.array([world.train(k, z[k], 0.6) for k in range(5)]) - z)
        s = w @ s
    assert np.abs(s - 1).max() > 0.1
    method = fedax.PushSum(graph=one_way())
    for engine in (ONE, fedax.Eager()):
        history = run(method, momentum=0.6, engine=engine)
        np.testing.assert_allclose(nodes(method, history), x / s[:, None], rtol=0, atol=1e-12)
        assert history.bits.up.tolist() == [64 * (4 + 1) * 7] * ROUNDS


@pytest.mark.slow
def test_push_sum_on_a_symmetric_graph_is_dfedavgm():
    plain = fedax.DFedAvgM(graph=path_of_five())
    pushed = fedax.PushSum(graph=path_of_five())
    np.testing.assert_allclose(
        nodes(pushed, run(pushed)), nodes(plain, run(plain)), rtol=0, atol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("drops", [0.0, 0.3])
def test_push_sum_is_right_where_averages_of_what_is_heard_are_biased(drops):
    """Flat losses: everybody starts apart and only talks. Push-sum ends at the mean, rows that sum
    to 1 elsewhere."""

    class Talk(fedax.DFedAvgM):
        def send(self, client, own):
            return Upload(jnp.where(client.round == 0, client.index.astype(own.dtype), own))

    class Push(fedax.PushSum):
        def send(self, client, own):
            first = dataclasses.replace(own, x=jnp.full_like(own.x, client.index))
            own = jax.tree.map(lambda a, b: jnp.where(client.round == 0, a, b), first, own)
            return Upload((own.x, own.s))

    network = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3)])
    task = fedax.Task(np.zeros(1), lambda w, x: 0 * (x @ w), [np.ones((2, 1))] * 5)
    push = Push(graph=Graph.directed(network).lossy(drops, "sender"))
    talk = Talk(graph=Graph.directed(network, "row").lossy(drops, "receiver"))
    found = {type(m): nodes(m, run(m, task, rounds=200))[:, 0] for m in (push, talk)}
    np.testing.assert_allclose(found[Push], 2.0, atol=1e-9)
    assert np.ptp(found[Talk]) < 1e-9
    assert abs(found[Talk][0] - 2.0) > 0.05


@pytest.mark.slow
def test_lost_messages_are_the_same_on_every_engine():
    method = fedax.PushSum(graph=one_way().lossy(0.4, "sender"))
    two = fedax.Simulation(devices=2)
    runs = [nodes(method, run(method, engine=engine)) for engine in (ONE, two, fedax.Eager())]
    for other in runs[1:]:
        np.testing.assert_allclose(other, runs[0], rtol=0, atol=1e-12)
    assert np.abs(nodes(method, run(method, seed=8)) - runs[0]).max() > 1e-4
    assert (
        np.abs(
            nodes(fedax.PushSum(graph=one_way()), run(fedax.PushSum(graph=one_way()))) - runs[0]
        ).max()
        > 1e-4
    )


def everybodys(world, x):
    return np.array([world.gradient(k, x[k]) for k in range(5)])


def test_extra():
    world = World()
    w = path_of_five().matrix()
    half = (np.eye(5) + w) / 2
    before = np.tile(world.start, (5, 1))
    x = w @ before - LR * everybodys(world, before)
    for _ in range(ROUNDS - 1):
        step = everybodys(world, x) - everybodys(world, before)
        x, before = x + w @ x - half @ before - LR * step, x
    method = fedax.EXTRA(graph=path_of_five())
    np.testing.assert_allclose(nodes(method, run(method)), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [fedax.ExactDiffusion, fedax.NIDS])
def test_exact_diffusion_and_nids(kind):
    """Adapt, correct, combine; NIDS by its recursion of two points, whose first step has no
    average."""
    world = World()
    w = path_of_five().matrix()
    half = (np.eye(5) + w) / 2
    before = np.tile(world.start, (5, 1))
    x = before - LR * everybodys(world, before)
    x = x if kind is fedax.NIDS else half @ x
    for _ in range(ROUNDS - 1):
        step = everybodys(world, x) - everybodys(world, before)
        x, before = half @ (2 * x - before - LR * step), x
    method = kind(graph=path_of_five())
    np.testing.assert_allclose(nodes(method, run(method)), x, rtol=0, atol=1e-12)


def test_dfedsam():
    world = World()
    w = path_of_five().matrix()
    rho = 0.2
    gossips = 3
    x = np.tile(world.start, (5, 1))
    for _ in range(ROUNDS):
        trained = []
        for k in range(5):
            z = x[k]
            for begin in [*range(0, SIZES[k], 4)] * 2:
                rows = slice(begin, begin + 4)
                g = world.gradient(k, z, rows)
                z = z - LR * world.gradient(k, z + rho * g / np.linalg.norm(g), rows)
            trained.append(z)
        x = np.linalg.matrix_power(w, gossips) @ trained
    method = fedax.DFedSAM(graph=path_of_five(), rho=rho, gossips=gossips)
    history = run(method)
    np.testing.assert_allclose(nodes(method, history), x, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [gossips * 64 * 4 * (int((w > 0).sum()) - 5)] * ROUNDS


def test_beer():
    """The released step, in its order, with floor on a fixed grid; the copies begin at the common
    start."""
    world = World()
    w = path_of_five().matrix()
    gamma = 0.4
    s = float(np.float32(0.01))
    pull = w - np.eye(5)
    x = np.tile(world.start, (5, 1))
    h = x.copy()
    v = np.zeros((5, 4))
    b = np.zeros((5, 4))
    last = np.zeros((5, 4))
    for _ in range(ROUNDS):
        g = everybodys(world, x)
        v = v + gamma * pull @ b + g - last
        b = b + grid(v - b, 12, s)
        x = x + gamma * pull @ h - LR * v
        h = h + grid(x - h, 12, s)
        last = g
    method = fedax.BEER(
        graph=path_of_five(), gamma=gamma, code=Quantizer(b=12, step=0.01, rounding="floor")
    )
    history = run(method, schedule=fedax.Schedule(steps=1, batch_size="full"))
    np.testing.assert_allclose(nodes(method, history), x, rtol=0, atol=1e-11)
    assert history.bits.up.tolist() == [2 * (32 + 12 * 4) * (int((w > 0).sum()) - 5)] * ROUNDS


def grid(v, b, s):
    """The paper's floor quantizer with a fixed step."""
    return np.clip(np.floor(v / s), -(2 ** (b - 1)), 2 ** (b - 1) - 1) * s


@pytest.mark.slow
def test_quantized_against_its_equations():
    """Eq. (7), replicas, and CHOCO-SGD's Alg. 2, with floor on a fixed grid that is too small for
    some entries."""
    w = path_of_five().matrix()
    b = 4
    s = float(np.float32(0.013))
    gamma = 0.6
    copies = np.tile(World().start, (5, 1))

    def paper(x, z, t):
        return x + w @ grid(z - x, b, s)

    def replica(x, z, t):
        nonlocal copies
        copies = copies + grid(z - copies, b, s)
        return w @ copies

    def choco(x, z, t):
        nonlocal copies
        copies = np.tile(World().start, (5, 1)) if t == 0 else copies
        copies = copies + grid(z - copies, b, s)
        return z + gamma * np.array(
            [sum(w[i, j] * (copies[j] - copies[i]) for j in range(5)) for i in range(5)]
        )

    for mode, step in (("paper", paper), ("replica", replica), ("choco", choco)):
        method = fedax.QuantizedDFedAvgM(
            graph=path_of_five(), b=b, step=s, rounding="floor", mode=mode, gamma=gamma
        )
        history = run(method)
        np.testing.assert_allclose(nodes(method, history), trajectory(step), rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [Quantizer(b=3), TopK(0.25)],
    ids=repr,
)
def test_choco_keeps_the_mean_of_the_local_models(code):
    """Whatever a message loses, the mean after a round is that of the trained models; replicas have
    that of the messages."""
    world = Heavy()
    far = {}
    start = np.tile(world.start, (5, 1))
    for mode, gamma in (("choco", 1.0), ("choco", 0.3), ("replica", 1.0)):
        method = fedax.QuantizedDFedAvgM(graph=path_of_five(), mode=mode, gamma=gamma, code=code)
        x = start
        for t in range(3):
            trained = np.mean([world.train(k, x[k], 0.0) for k in range(5)], axis=0)
            x = nodes(method, run(method, rounds=t + 1))
            far[mode, gamma] = np.abs(x.mean(0) - trained).max()
            assert mode == "replica" or far[mode, gamma] < 1e-13
    assert far["replica", 1.0] > 1e-3


@pytest.mark.slow
def test_equation_7_lets_disagreement_grow():
    """Constant gradients G: eq. (7) gives X_t = -t eta W G, Alg. 1 gives -eta (W + ... + W^t) G;
    the means agree."""
    g = np.array([[1.0], [-2.0], [3.0], [0.0], [-1.0]])
    t = 40
    w = path_of_five().matrix()
    task = fedax.Task(np.zeros(1), lambda x, a: a @ x, [[row] for row in g])
    schedule = fedax.Schedule(steps=1, batch_size="full")
    found = {}
    for mode in ("paper", "replica"):
        method = fedax.QuantizedDFedAvgM(graph=path_of_five(), mode=mode, code=Identity())
        found[mode] = nodes(method, run(method, task, rounds=t, schedule=schedule, lr=0.1))
    np.testing.assert_allclose(found["paper"], -0.1 * t * w @ g, rtol=0, atol=1e-11)
    powers = sum(np.linalg.matrix_power(w, k) for k in range(1, t + 1))
    np.testing.assert_allclose(found["replica"], -0.1 * powers @ g, rtol=0, atol=1e-11)
    np.testing.assert_allclose(found["paper"].mean(0), found["replica"].mean(0), rtol=0, atol=1e-11)


@pytest.mark.slow
def test_equation_7_is_unstable_where_w_has_negative_eigenvalues():
    """Centres b = (1, -1, 1, -1) on a ring of four, W b = -b / 3; local training shrinks x - b to q
    (x - b).

    Then x_t - b = -(1 + (1 - q) / 3)^t b with eq. (7); Alg. 1 stays within (1 - q) / (3 + q) of the
    mean."""
    b = np.array([1.0, -1.0, 1.0, -1.0])
    q = 0.9**5
    t = 12
    task = quadratic(np.ones((4, 1, 1)), b[:, None])
    schedule = fedax.Schedule(steps=5, batch_size="full")
    found = {}
    for mode in ("paper", "replica"):
        method = fedax.QuantizedDFedAvgM(mode=mode, code=Identity())
        found[mode] = nodes(method, run(method, task, rounds=t, schedule=schedule, lr=0.1))[:, 0]
    np.testing.assert_allclose(found["paper"] - b, -((1 + (1 - q) / 3) ** t) * b, rtol=1e-12)
    limit = -b * (1 - q) / (3 + q)
    np.testing.assert_allclose(found["replica"] - limit, (-q / 3) ** t * -limit, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_bits_of_quantized_messages():
    """(32 + d b) deg(i) for every client."""
    graph = Graph.erdos_renyi(5, 0.6, seed=2)
    history = run(fedax.QuantizedDFedAvgM(graph=graph, b=8), rounds=1)
    assert history.bits.up.tolist() == [(32 + 4 * 8) * int(np.asarray(graph.degrees).sum())]
