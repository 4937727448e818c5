"""Asynchronous servers: timetables against a discrete-event simulation, FedBuff and FedAsync
against NumPy transcriptions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.core.scheduling.asynchronous import Asynchronous, ServerSteps, _Ranking
from fedax.core.scheduling.clock import Cost
from fedax.core.task import initial_params
from fedax.engine.round.client import Setup
from fedax.engine.round.timeline import timeline_of, timing_of
from fedax.errors import InvalidInput
from problems import regression, vector
from transcription import LR, P, World

ROUNDS = 12
SEED = 7


RATES = [100.0, 40.0, 10.0, 300.0, 25.0]
SPEEDS = fedax.Clock(speed=RATES, latency=0.1)


def schedule(cohort=2, order="given", **options):
    server = fedax.Asynchronous(**{"concurrency": 4, **options})
    return fedax.Schedule(cohort=cohort, epochs=2, batch_size=4, order=order, asynchronous=server)


def run(method=None, how=None, rounds=ROUNDS, task=None, **options):
    options = {
        "solver": fedax.SGD(LR),
        "seed": SEED,
        "engine": fedax.Simulation(devices=1),
        "clock": SPEEDS,
    } | options
    return fedax.run(
        method or fedax.FedAvg(),
        task or regression(),
        schedule=how or schedule(),
        rounds=rounds,
        **options,
    )


def simulated(clients, cohort, server, durations, seed, steps):
    """The timetable by processes of simpy: rows of (time, clients, versions, sent, discarded)."""
    simpy = pytest.importorskip("simpy", reason="the independent simulation needs simpy")
    env = simpy.Environment()
    random = np.random.Generator(np.random.PCG64(seed))
    arrived = simpy.PriorityStore(env)
    free = set(range(clients))
    rows = []
    state = {"version": 0, "at work": 0, "number": 0, "sent": 0}

    def train(client, version, number):
        yield env.timeout(durations[client, version % durations.shape[1]])
        yield arrived.put((client, version, number))

    def dispatch():
        count = min(server.concurrency - state["at work"], len(free))
        whole = count == cohort and len(free) == clients
        for i in range(count):
            client = i if whole else sorted(free)[int(random.integers(len(free)))]
            free.remove(client)
            env.process(train(client, state["version"], state["number"]))
            state["number"] += 1
            state["at work"] += 1
            state["sent"] += 1

    def serve():
        buffer = []
        discarded = 0
        dispatch()
        while len(rows) < steps:
            if not state["at work"]:
                dispatch()
            if not arrived.items:
                yield env.timeout(env.peek() - env.now)
                yield env.timeout(0)  # all that arrive at this time have arrived
                continue
            client, version, number = yield arrived.get()
            state["at work"] -= 1
            if (
                server.max_staleness is not None
                and state["version"] - version > server.max_staleness
            ):
                discarded += 1
                free.add(client)
            else:
                buffer.append((number, client, version))
            if len(buffer) == cohort:
                buffer.sort()
                rows.append(
                    (
                        env.now,
                        [b[1] for b in buffer],
                        [b[2] for b in buffer],
                        state["sent"],
                        discarded,
                    )
                )
                state["version"] = state["version"] + 1
                state["sent"] = 0
                discarded = 0
                free.update(b[1] for b in buffer)
                buffer = []
                dispatch()
            elif server.dispatch == "arrival":
                dispatch()

    env.run(until=env.process(serve()))
    return rows


def drawn(server, cohort, durations, seed):
    """Steps with given durations, shape (clients, versions)."""

    def cost(clients, version):
        seconds = durations[clients, version % durations.shape[1]]
        return Cost(seconds, seconds, seconds)

    ones = np.ones(len(durations), int)
    return ServerSteps(server, cohort, ones, seed, cost, lambda version: np.arange(cohort))


@pytest.mark.parametrize("part", range(4))
def test_timetables_are_those_of_a_discrete_event_simulation(part):
    """On 200 random settings. Durations are multiples of 1/4 in half of them, so that clients
    arrive at the same time."""
    pytest.importorskip("simpy", reason="the independent simulation needs simpy")
    for case in range(50):
        random = np.random.default_rng([part, case])
        clients = int(random.integers(1, 12))
        cohort = int(random.integers(1, clients + 1))
        dispatch = ["arrival", "server_step"][case % 2]
        concurrency = int(random.integers(cohort if case % 2 else 1, clients + 1))
        bound = None if random.random() < 0.5 else int(random.integers(0, 4))
        server = Asynchronous(concurrency=concurrency, dispatch=dispatch, max_staleness=bound)
        durations = np.exp(random.normal(size=(clients, 5)))
        if random.random() < 0.5:
            durations = np.ceil(durations * 4) / 4
        steps = drawn(server, cohort, durations, case)
        rows = steps.rows(0, 30)
        ends = np.cumsum(steps.logged(0, 30)["round_seconds"])
        expected = simulated(clients, cohort, server, durations, case, 30)
        for step, (time, ids, versions, sent, discarded) in enumerate(expected):
            np.testing.assert_allclose(ends[step], time, rtol=1e-12)
            assert rows.clients[step].tolist() == ids
            assert rows.versions.numbers[step].tolist() == versions
            assert (rows.sent[step], rows.discarded[step]) == (sent, discarded)
        _check_slots(rows, steps.slots(30), bound)


def _check_slots(rows, slots, bound):
    """A slot still has the version that a client received when its upload is taken."""
    content = {}
    versions = rows.versions
    for step, stored in enumerate(versions.stored.tolist()):
        content[stored] = step
        received = [content[slot] for slot in versions.slots[step].tolist()]
        assert received == versions.numbers[step].tolist()
    assert max(content) < slots
    if bound is not None:
        assert slots <= bound + 1
        assert (np.arange(len(versions.stored))[:, None] - versions.numbers).max() <= bound


def test_draws_by_size_have_their_probabilities():
    sizes = np.array([1, 2, 3, 10])
    random = np.random.default_rng(0)
    counts = np.zeros(4)
    free = _Ranking(sizes)
    free.remove(2)
    for _ in range(4000):
        client = free.draw(random)
        free.add(client)
        counts[client] += 1
    np.testing.assert_allclose(counts / 4000, np.array([1, 2, 0, 10]) / 13, atol=0.03)


def _transcribed(how, mixes=False, lr=1.0):
    """FedBuff and FedAsync from the server's side: w, a list of past models, and what arrives
    when."""
    world = World()
    server = how.asynchronous
    timetable = _timetable(how)
    w = world.start
    past = []
    rows = timetable.rows(0, ROUNDS)
    for t in range(ROUNDS):
        past.append(w)
        total = np.zeros_like(w)
        weights = 0.0
        for k, v in zip(rows.clients[t], rows.versions.numbers[t], strict=True):
            mine = world.sgd(k, past[v])[0]
            tau = t - v
            s = {"constant": 1.0, "polynomial": (1 + tau) ** -server.a}.get(server.weight)
            s = (
                (1.0 if tau <= server.b else 1 / (server.a * (tau - server.b) + 1))
                if s is None
                else s
            )
            total = total + P[k] * s * (mine - (w if mixes else past[v]))
            weights += P[k]
        w = w + lr * total / weights
    return w, rows


def _timetable(how, clock=SPEEDS):
    """The server steps of FedAvg on the task of the transcriptions."""
    task = regression()
    setup = Setup.of(fedax.FedAvg(), task, how, fedax.SGD(LR))
    timing = timing_of(setup, clock, ROUNDS)
    setup = dataclasses.replace(setup, timing=timing)
    return timeline_of(setup, initial_params(setup.task, SEED)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "dispatch"),
    [("polynomial", "arrival"), ("constant", "server_step"), ("hinge", "arrival")],
)
def test_fedbuff_against_its_pseudocode(weight, dispatch):
    how = schedule(weight=weight, dispatch=dispatch, b=1)
    expected, rows = _transcribed(how, lr=0.7)
    assert len({*(np.arange(ROUNDS)[:, None] - rows.versions.numbers).ravel().tolist()}) > 2, (
        "no staleness to test"
    )
    history = run(fedax.FedAvg(server=optax.sgd(0.7)), how)
    np.testing.assert_allclose(vector(history), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("weight", ["polynomial", "hinge"])
def test_fedasync_against_its_pseudocode(weight):
    """One arrival a step; the client's model is mixed with the server's with weight 0.6 s."""
    how = schedule(1, weight=weight, uploads="models", b=1)
    expected, _ = _transcribed(how, mixes=True, lr=0.6)
    history = run(fedax.FedAvg(server=optax.sgd(0.6)), how)
    np.testing.assert_allclose(vector(history), expected, rtol=0, atol=1e-12)
    assert history.logged["staleness"].max() >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [fedax.SCAFFOLD(), fedax.FedNova(), fedax.CenteredClip(momentum=0.9)],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.parametrize("cohort", [3, None])
def test_equal_speeds_are_the_synchronous_method(method, cohort):
    """With as many clients at work as a step takes, dispatched after steps: bit for bit, whatever
    weights staleness would have."""
    alike = schedule(cohort, "shuffled", concurrency=cohort or 5, dispatch="server_step")
    synchronous = dataclasses.replace(alike, asynchronous=None)
    clock = fedax.Clock(speed=50.0, latency=0.1)
    one, other = (run(method, how, 6, clock=clock) for how in (alike, synchronous))
    np.testing.assert_array_equal(vector(one), vector(other))
    np.testing.assert_array_equal(one.bits.down, other.bits.down)
    np.testing.assert_array_equal(one.bits.up, other.bits.up)
    assert (one.logged["staleness"] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        fedax.Eager(),
        fedax.Simulation(chunk=2, devices=1),
        fedax.Simulation(memory="host", devices=1),
    ],
    ids=["eager", "chunked", "host"],
)
def test_engines_agree(engine):
    how = dataclasses.replace(
        schedule(order="shuffled", max_staleness=3), conditions={"stragglers": 0.3}
    )
    channel = fedax.Channel(up=fedax.codecs.TopK(0.5), down=fedax.codecs.Quantizer(b=12))
    one, other = (
        run(fedax.SCAFFOLD(option="I"), how, 6, channel=channel, engine=e)
        for e in (fedax.Simulation(devices=1), engine)
    )
    np.testing.assert_allclose(vector(one), vector(other), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(one.bits.down, other.bits.down)
    np.testing.assert_array_equal(one.bits.up, other.bits.up)


@pytest.mark.slow
def test_resuming_in_the_middle_gives_the_same_bits(tmp_path):
    """Also where the longer run needs more slots than the one that wrote the checkpoint."""
    how = schedule(1, "shuffled")
    method = fedax.SCAFFOLD(option="I")
    straight = run(method, how, 14)
    first = run(method, how, 5, checkpoint=tmp_path / "a")
    for continued in (
        run(method, how, 14, checkpoint=tmp_path / "a"),
        run(method, how, 14, resume=first),
    ):
        np.testing.assert_array_equal(vector(continued), vector(straight))
        np.testing.assert_array_equal(continued.bits.down, straight.bits.down)


@pytest.mark.slow
def test_a_grid_goes_on_when_a_member_has_ended():
    """It has as many slots as its own rounds needed."""
    found = None
    for rounds in (5, 14, 15):
        found = fedax.run_grid(
            [fedax.FedAvg()],
            regression(),
            solver=[fedax.SGD(LR), fedax.SGD(50.0)],
            schedule=schedule(1, "shuffled"),
            clock=SPEEDS,
            stop=fedax.Divergence(window=1),
            rounds=rounds,
            resume=found,
        )
    assert [len(history.bits.up) for history in found] == [15, 1]


@pytest.mark.slow
def test_sessions_and_grids_have_the_same_steps():
    how = schedule(order="shuffled")
    options = {
        "solver": fedax.SGD(LR),
        "schedule": how,
        "engine": fedax.Simulation(devices=1),
        "clock": SPEEDS,
    }
    straight = run(how=how, rounds=3)
    session = fedax.start(fedax.FedAvg(), regression(), seed=SEED, **options)
    state = session.init()
    for _ in range(3):
        state, _ = session.step(state)
    np.testing.assert_allclose(
        np.hstack(jax.tree.leaves(session.params(state))), vector(straight), atol=1e-15
    )
    methods = [fedax.FedProx(mu=0.0), fedax.FedProx(mu=1.0)]
    grid = fedax.run_grid(methods, regression(), seed=[SEED, 3], rounds=3, **options)
    np.testing.assert_allclose(vector(grid[0]), vector(straight), atol=1e-12)


def test_traffic_counts_what_is_sent_and_discarded():
    how = schedule(max_staleness=0)
    history = run(how=how)
    timetable = _timetable(how)
    rows = timetable.rows(0, ROUNDS)
    bits = 64 * 4
    assert rows.discarded.sum() > 0
    assert history.bits.up.tolist() == ((2 + rows.discarded) * bits).tolist()
    assert history.bits.down.tolist() == (rows.sent * bits).tolist()
    assert history.logged["discarded"].tolist() == rows.discarded.tolist()
    seconds = timetable.logged(0, ROUNDS)["round_seconds"]
    assert history.logged["round_seconds"].tolist() == seconds.tolist()


@pytest.mark.slow
def test_an_algorithm_sees_the_staleness():
    class Late(fedax.Algorithm):
        citation = fedax.FedAvg.citation

        def round(self, fed, state):
            mean, late = fed.average(self.train, fed.sample(), state)
            fed.log(seen=late)
            return mean

        def train(self, client, w):
            return fedax.Upload(
                (client.minimize(start=w), jnp.asarray(client.staleness, w.dtype)), reference=w
            )

    how = dataclasses.replace(schedule(), weights="equal")
    history = run(Late(), how)
    np.testing.assert_allclose(history.logged["seen"], history.logged["staleness"], atol=1e-15)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (fedax.FedDANE(), "follows another one"),
        (fedax.DFedAvgM(), "a method without a server"),
        (fedax.FedExP(), "are neither changes"),
        (fedax.IFCA(clusters=2), "one of the vectors sent down"),
        (fedax.GD(), "asks clients that the schedule has not drawn"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_methods_whose_uploads_would_lose_their_meaning_are_refused(method, reason):
    with pytest.raises(InvalidInput, match=f"{type(method).__name__}: .*{reason}"):
        run(method)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [fedax.FedDyn, fedax.FedNova, fedax.QFedAvg, fedax.Ditto],
    ids=lambda k: k.__name__,
)
def test_methods_agree_with_the_reference_engine(kind):
    how = dataclasses.replace(schedule(order="shuffled"), weights="equal")
    one, other = (
        run(kind(), how, 4, engine=engine)
        for engine in (fedax.Simulation(devices=1), fedax.Eager())
    )
    np.testing.assert_allclose(vector(one), vector(other), rtol=0, atol=1e-9)


DEVICES = dataclasses.replace(SPEEDS, energy=2.0, energy_down=1e-3, energy_up=0.1)


@pytest.mark.slow
def test_joules_are_those_of_the_arrivals():
    how = schedule(max_staleness=0)
    history = run(how=how, clock=DEVICES)
    rows = _timetable(how, DEVICES).rows(0, ROUNDS)
    sizes = np.asarray(regression().train.sizes)
    bits = 64 * 4
    kept = [sum(2.0 * 2 * sizes[k] + (0.1 + 1e-3) * bits for k in ks) for ks in rows.clients]
    joules = history.logged["round_joules"]
    np.testing.assert_allclose(joules[rows.discarded == 0], np.array(kept)[rows.discarded == 0])
    assert (joules > np.array(kept) + 1).tolist() == (rows.discarded > 0).tolist()
    np.testing.assert_allclose(history.clock.joules[1:], np.cumsum(joules))
    spent = float(history.clock.joules[3])
    stopped = run(how=how, clock=DEVICES, stop=fedax.Budget(joules=spent))
    assert (stopped.outcome.kind, len(stopped.bits.up)) == ("stopped", 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [fedax.Simulation(devices=1), fedax.Eager()],
    ids=["simulation", "eager"],
)
def test_a_server_step_without_uploads_still_sends_its_version(engine):
    """The clients that start at it arrive later and work on it.

    Every second upload is dropped. The others have their minimum at 10, where the model begins, so
    it stays there.
    """
    clients = {"far": [1000.0, 1000.0], "a": [10.0], "b": [10.0, 10.0, 10.0]}
    with jax.enable_x64(False):
        task = fedax.Task(10.0, _half_square_or_infinite, clients)
        server = fedax.Asynchronous(concurrency=3, weight="constant")
        how = fedax.Schedule(
            cohort=1, steps=1, batch_size="full", weights="equal", asynchronous=server
        )
        history = run(
            how=how,
            task=task,
            engine=engine,
            on_bad_client="drop",
            solver=fedax.SGD(0.5),
            clock=fedax.Clock(latency=[1.0, 1.7, 2.3]),
        )
    dropped = history.logged["dropped"].ravel()
    assert (dropped == 0).sum() >= 4
    assert (dropped == -1).sum() >= 4
    assert history.logged["staleness"].max() > 1
    assert float(history.params) == 10.0


def _half_square_or_infinite(w, x):
    return (w - x) ** 2 / 2 * jnp.where(x > 100, jnp.inf, 1.0)
