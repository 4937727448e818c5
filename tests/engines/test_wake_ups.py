"""AD-PSGD on the virtual clock: wake-ups against a discrete-event simulation, models against a NumPy
transcription."""

import dataclasses
import re

import jax
import networkx as nx
import numpy as np
import pytest

import fedax
from fedax.conformance.method import examples_of, squares
from fedax.core.hyper import as_arrays
from fedax.core.scheduling.asynchronous import Asynchronous, WakeUps
from fedax.engine.round.client import Setup
from fedax.engine.round.engine import initial_params
from fedax.engine.round.timing.asynchronous import server_steps_of
from fedax.errors import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.tasks import from_loss
from fedax.utils.layout import Layout
from fedax.utils.random import stream
from marks import slow
from problems import regression, vector
from transcription import LR, World

ROUNDS, SEED = 40, 7
ONE = fedax.Simulation("sequential", devices=1)
PATH = fedax.Graph.of(nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (1, 3)]))
DEVICES = fedax.Devices(
    speed=[100.0, 40.0, 10.0, 300.0, 25.0], latency=0.1, energy=2.0, energy_down=1e-3, energy_up=0.1
)
DRAWN = fedax.Schedule(epochs=2, batch_size=4, order="given")
CLOCKED = dataclasses.replace(DRAWN, asynchronous=fedax.Asynchronous(DEVICES))
METHOD = fedax.ADPSGD(graph=PATH)


def run(how=CLOCKED, rounds=ROUNDS, method=METHOD, task=None, **options):
    options = {"solver": fedax.SGD(LR), "seed": SEED, "engine": ONE, "observe": (), **options}
    return fedax.run(method, task or regression(), schedule=how, rounds=rounds, **options)


def nodes(history):
    return np.asarray(METHOD.nodes(history.state).all())


def simulated(around, durations, seed, steps):
    """The wake-ups by processes of simpy: rows of (time, client, neighbour, version)."""
    simpy = pytest.importorskip("simpy", reason="the independent simulation needs simpy")
    env, random = simpy.Environment(), np.random.Generator(np.random.PCG64(seed))
    done, rows = simpy.PriorityStore(env), []

    def train(client, version):
        yield env.timeout(durations[client, version % durations.shape[1]])
        yield done.put((client, version))

    def watch():
        # a server draws the clients at work, here all of them, whose order does not matter
        for left in range(len(around), 0, -1):
            random.integers(left)
        for client in range(len(around)):
            env.process(train(client, 0))
        while len(rows) < steps:
            if not done.items:
                yield env.timeout(env.peek() - env.now)
                yield env.timeout(0)  # all that are done at this time have said so
                continue
            client, version = yield done.get()
            j = around[client][int(random.integers(len(around[client])))]
            rows.append((env.now, client, j, version))
            env.process(train(client, len(rows)))

    env.run(until=env.process(watch()))
    return rows


@pytest.mark.parametrize("part", range(4))
def test_wake_ups_are_those_of_a_discrete_event_simulation(part):
    """On 200 random settings. Durations are multiples of 1/4 in half of them, so that clients are
    done at the same time."""
    pytest.importorskip("simpy", reason="the independent simulation needs simpy")
    for case in range(50):
        random = np.random.default_rng([part, case])
        clients = int(random.integers(2, 12))
        network = nx.gnp_random_graph(clients, 0.5, int(random.integers(1 << 30)))
        network.add_edges_from(nx.path_graph(clients).edges)
        around = [np.array(sorted(network[k])) for k in range(clients)]
        durations = np.exp(random.normal(size=(clients, 5)))
        if case % 2:
            durations = np.ceil(durations * 4) / 4
        seconds = lambda ids, version, durations=durations: durations[ids, version % 5]  # noqa: E731
        wake_ups = WakeUps(Asynchronous(), around, seconds, case)
        rows = wake_ups.rows(0, 40)
        columns = wake_ups.times, rows.clients[:, 0], rows.partners[:, 0], rows.versions[:, 0]
        for found, expected in zip(
            columns, zip(*simulated(around, durations, case, 40), strict=True), strict=True
        ):
            assert found.tolist() == list(expected)


def timetable(how=CLOCKED):
    task = regression()
    layout = Layout.of(jax.eval_shape(task.start, jax.random.key(0)))
    setup = Setup(task, as_arrays(fedax.SGD(LR), layout.dtype), how, layout, task.train.population)
    steps = server_steps_of(as_arrays(METHOD, layout.dtype), setup, ROUNDS)
    return steps.timetable(setup, initial_params(task, SEED)[1])


def drawn():
    """The wake-ups of a run without a clock: uniform clients, and uniform neighbours."""
    root, rows = initial_params(regression(), SEED)[1], []
    links = PATH.network()
    for t in range(ROUNDS):
        i = int(jax.random.randint(stream(root, "wake-up", t), (), 0, 5, np.int32))
        around = sorted(links[i])
        place = jax.random.randint(stream(root, "neighbour", t), (), 0, len(around), np.int32)
        rows.append((i, around[int(place)]))
    return rows


@pytest.mark.parametrize("how", [CLOCKED, DRAWN], ids=["clock", "drawn"])
def test_adpsgd_against_its_pseudocode(how):
    """From the outside: all models, a list of those that gradients are of, who meets whom."""
    world, pairs = World(), drawn()
    if how is CLOCKED:
        rows = timetable().rows(0, ROUNDS)
        pairs = [*zip(rows.clients[:, 0], rows.partners[:, 0], strict=True)]
        assert (np.arange(ROUNDS) - rows.versions[:, 0]).max() > 5, "no staleness to test"
    x = np.tile(world.start, (5, 1))
    begun, stale = x.copy(), 0
    for i, j in pairs:
        change = world.sgd(i, begun[i])[0] - begun[i]
        stale += int(not np.array_equal(begun[i], x[i]))
        x[i] = x[j] = (x[i] + x[j]) / 2
        x[i] = x[i] + change
        begun[i] = x[i]
    assert stale > 5
    history = run(how)
    np.testing.assert_allclose(nodes(history), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(vector(history), x.mean(0), rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [2 * 64 * 4] * ROUNDS
    assert not history.bits.down.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        fedax.Eager(),
        fedax.Simulation("chunked", chunk=2, devices=1),
        fedax.Simulation(memory="host", devices=1),
    ],
    ids=["eager", "chunked", "host"],
)
def test_engines_agree(engine):
    how = dataclasses.replace(CLOCKED, order="shuffled", stragglers=0.3)
    channel = fedax.Channel(up=fedax.codecs.TopK(0.5))
    one, other = (run(how, 4, channel=channel, engine=e) for e in (ONE, engine))
    np.testing.assert_allclose(nodes(one), nodes(other), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(one.bits.up, other.bits.up)
    assert one.notes["clock"].tolist() == other.notes["clock"].tolist()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_also_when_resumed(tmp_path):
    how = dataclasses.replace(CLOCKED, order="shuffled")
    straight = run(how, 14)
    first = run(how, 5, checkpoint=tmp_path / "a")
    for other in (
        run(how, 14),
        run(how, 14, checkpoint=tmp_path / "a"),
        run(how, 14, resume=first),
    ):
        np.testing.assert_array_equal(nodes(other), nodes(straight))
        assert other.notes["clock"].tolist() == straight.notes["clock"].tolist()
        np.testing.assert_array_equal(other.bits.up, straight.bits.up)
    assert not np.array_equal(nodes(run(how, 14, seed=8)), nodes(straight))


@pytest.mark.slow
def test_seeds_and_rates_are_one_program():
    rates = [fedax.SGD(0.01), fedax.SGD(LR)]
    grid = fedax.run_grid(
        [METHOD, METHOD],
        regression(),
        seed=[3, SEED],
        solver=rates,
        schedule=CLOCKED,
        rounds=9,
        engine=ONE,
    )
    np.testing.assert_allclose(nodes(grid[3]), nodes(run(rounds=9)), rtol=0, atol=1e-12)


def test_names_of_devices_and_nodes():
    """A table of devices and a graph by name, in other orders than the clients have."""
    names = ["anna", "berta", "carl", "dora", "emil"]
    task = from_loss(
        squares,
        {"b": np.zeros(()), "w": np.full(3, 0.1)},
        dict(zip(names, examples_of((7, 20, 33, 4, 11)), strict=True)),
        l2=0.01,
    )
    places = [3, 0, 4, 2, 1]
    table = {
        "client": [names[k] for k in places],
        "speed": [DEVICES.speed[k] for k in places],
    }
    devices = fedax.Devices(table=table, latency=0.1, energy=2.0, energy_down=1e-3, energy_up=0.1)
    edges = [("dora", "emil"), ("carl", "dora"), ("berta", "dora"), ("anna", "berta")]
    network = nx.Graph([*edges, ("berta", "carl")])
    graph = fedax.Graph.of(network, order=[names[k] for k in places])
    how = dataclasses.replace(CLOCKED, asynchronous=fedax.Asynchronous(devices))
    named = run(how, 12, fedax.ADPSGD(graph=graph), task)
    plain = run(rounds=12)
    np.testing.assert_allclose(nodes(named), nodes(plain), rtol=0, atol=1e-12)
    assert named.clock.seconds.tolist() == plain.clock.seconds.tolist()


def test_seconds_joules_and_staleness():
    history, table = run(), timetable()
    rows, sizes = table.rows(0, ROUNDS), np.asarray(regression().train.sizes)
    assert history.notes["clock"].tolist() == table.times[:ROUNDS].tolist()
    staleness = np.arange(ROUNDS) - rows.versions[:, 0]
    assert history.notes["staleness"].tolist() == staleness.tolist()
    message = (0.1 + 1e-3) * 64 * 4
    joules = 2.0 * 2 * sizes[rows.clients[:, 0]] + 2 * message
    np.testing.assert_allclose(history.notes["round_joules"], joules)
    # a client's own wake-ups are as far apart as its work takes
    mine = table.times[:ROUNDS][rows.clients[:, 0] == 3]
    np.testing.assert_allclose(np.diff(mine), 0.1 + 2 * sizes[3] / 300)
    own = run(dataclasses.replace(DRAWN, asynchronous=fedax.Asynchronous()), devices=DEVICES)
    np.testing.assert_array_equal(nodes(own), nodes(history))


@pytest.mark.slow
def test_a_client_without_neighbours_trains_alone():
    history = run(method=fedax.ADPSGD(graph=fedax.Graph.isolated(5)), rounds=30)
    world, x = World(), np.tile(World().start, (5, 1))
    for k in timetable().rows(0, 30).clients[:, 0]:
        x[k] = world.sgd(k, x[k])[0]
    np.testing.assert_allclose(nodes(history), x, rtol=0, atol=1e-12)
    assert not history.bits.up.any()


@pytest.mark.parametrize(
    "engine", [fedax.Simulation(), slow(fedax.Eager())], ids=["simulation", "eager"]
)
def test_a_single_client_takes_plain_steps(engine):
    """It meets itself, is one participant, and is observed as one."""
    task, schedule = fedax.tasks.synthetic(clients=1), fedax.Schedule(steps=1, batch_size="full")
    options = {"solver": fedax.SGD(0.1), "schedule": schedule, "rounds": 3}
    options["observe"] = [fedax.observe.TrainLoss()]
    alone, plain = (
        fedax.run(method, task, engine=engine, **options)
        for method in (fedax.ADPSGD(), fedax.FedAvg())
    )
    losses = (history.metrics["train_loss"] for history in (alone, plain))
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.slow
def test_files_have_wake_ups():
    text = """
name = "gossip"
rounds = 6
observe_every = 3
observe = ["train_loss"]
[task]
name = "digits"
clients = 5
[devices]
speed = {name = "lognormal", median = 100.0, sigma = 1.0}
[[algorithm]]
name = "dsgd"
[[algorithm]]
name = "adpsgd"
[algorithm.schedule.asynchronous]
"""
    experiment = Experiment.parse(text)
    assert Experiment.parse(experiment.toml()).resolved() == experiment.resolved()
    plan = experiment.plan()
    waits, wakes = (
        fedax.run(plan.algorithms[m], plan.task, **plan.arguments_of(m)) for m in plan.algorithms
    )
    assert "clock" not in waits.notes
    assert wakes.clock.seconds[-1] == wakes.notes["clock"][-1] > 0


def refusal(how=CLOCKED, method=METHOD, **options):
    with pytest.raises(InvalidInput) as raised:
        run(how, 2, method, **options)
    return str(raised.value)


def clocked(**options):
    return dataclasses.replace(DRAWN, asynchronous=fedax.Asynchronous(DEVICES, **options))


@pytest.mark.parametrize(
    ("how", "options", "words"),
    [
        (clocked(concurrency=3), {}, "got concurrency; allowed: devices and passes on a graph"),
        (clocked(weight="constant", max_staleness=2), {}, "got weight, max_staleness"),
        (DRAWN, {"devices": DEVICES}, "the wake-ups of ADPSGD have no time without a timetable"),
        (
            dataclasses.replace(DRAWN, deadline=1.0),
            {"devices": DEVICES},
            "no cohort that it could wait for",
        ),
        (CLOCKED, {"solver": fedax.Exact()}, "Declare its cost"),
        (CLOCKED, {"on_bad_client": "drop"}, "methods without a server"),
        (
            DRAWN,
            {"channel": fedax.Channel(privacy=fedax.Privacy(where="client"))},
            "whose neighbours see single uploads",
        ),
        (
            DRAWN,
            {
                "channel": fedax.Channel(
                    up=fedax.codecs.EF21(fedax.codecs.TopK(0.5, feedback=False))
                )
            },
            "receivers",
        ),
        (CLOCKED, {"method": fedax.ADPSGD(graph=PATH.noisy(0.1))}, "graphs that do not change"),
        (DRAWN, {"method": fedax.ADPSGD(graph=fedax.Graph.matchings(5))}, "do not change"),
    ],
    ids=str,
)
def test_what_meetings_do_not_have_is_refused(how, options, words):
    assert words in refusal(how, **options)


def test_engines_on_which_clients_cannot_meet_are_refused_before_they_begin():
    class Elsewhere(fedax.Eager):
        is_asynchronous = False

        def program(self, *arguments):
            raise AssertionError("a program was built")

    for how in (DRAWN, CLOCKED):
        assert "Simulation and Eager" in refusal(how, engine=Elsewhere())


@pytest.mark.slow
def test_momentum_and_rates_that_decay_count_wake_ups():
    """The local solver sees the wake-up at which its work began."""
    history = run(solver=fedax.SGD(LR, momentum=0.5, decay=0.9), rounds=12)
    world, rows = World(), timetable().rows(0, 12)
    x = np.tile(world.start, (5, 1))
    begun = x.copy()
    for i, j, v in zip(rows.clients[:, 0], rows.partners[:, 0], rows.versions[:, 0], strict=True):
        w, speed = begun[i], np.zeros(4)
        for _ in range(2):
            for begin in range(0, len(world.y[i]), 4):
                speed = 0.5 * speed + world.gradient(i, w, slice(begin, begin + 4))
                w = w - LR * 0.9**v * speed
        x[i] = x[j] = (x[i] + x[j]) / 2
        x[i] = x[i] + w - begun[i]
        begun[i] = x[i]
    np.testing.assert_allclose(nodes(history), x, rtol=0, atol=1e-12)


def test_help_and_footprint_name_pairs():
    (phase,) = fedax.footprint(fedax.ADPSGD()).phases
    assert (phase.pair, phase.links, phase.everyone, phase.step_gradients) == (
        True,
        False,
        False,
        1,
    )
    assert re.search("one neighbour and back", _panel_text())


def _panel_text():
    from rich.console import Console

    from fedax.report.methods import panel

    console = Console(width=200)
    with console.capture() as captured:
        console.print(panel(fedax.ADPSGD))
    return captured.get()
