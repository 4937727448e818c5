"""The virtual clock of synchronous rounds: against a discrete-event simulation, by hand, and
without effect on training."""

import jax
import numpy as np
import pytest

import fedax
from fedax.core.scheduling.clock import Clock
from fedax.errors import InvalidInput
from fedax.utils.random import stream
from problems import regression, vector

SEED = 3
ROUNDS = 6
RNG = np.random.default_rng(0)
FACTORS = RNG.lognormal(sigma=0.5, size=(ROUNDS, 5))
DRAWN = {
    "speed": 50 * RNG.lognormal(size=5),
    "down": 10 ** RNG.uniform(3, 5, size=5),
    "up": lambda clients, t: 5e3 * FACTORS[t, clients],
    "latency": RNG.uniform(0.05, 0.5, size=5),
    "energy": 2.0,
    "energy_down": 1e-3,
    "energy_up": 3e-3,
}


def run(method=None, clock=None, task=None, rounds=ROUNDS, **options):
    options = {
        "solver": fedax.SGD(0.05),
        "seed": SEED,
        "engine": fedax.Simulation(devices=1),
    } | options
    return fedax.run(
        method or fedax.FedAvg(), task or regression(), clock=clock, rounds=rounds, **options
    )


def simulated(phases, clock):
    """Ends of the rounds by processes of simpy, whose clients are resources that do one thing after
    the other.

    `phases` has for each round and phase the clients with their bits down and up and their
    examples."""
    simpy = pytest.importorskip("simpy", reason="the independent simulation needs simpy")
    env = simpy.Environment()
    ends = []

    def client(device, k, t, down, up, examples):
        value = lambda name: float(clock.values(name, [k], t)[0])  # noqa: E731
        with device.request() as turn:
            yield turn
            yield env.timeout(value("latency"))
            yield env.timeout(down / value("down"))
            yield env.timeout(examples / value("speed"))
            yield env.timeout(up / value("up"))

    def server():
        for t, round in enumerate(phases):
            for works in round:
                each = {k: simpy.Resource(env) for k, *_ in works}
                yield env.all_of(
                    [env.process(client(each[k], k, t, *amounts)) for k, *amounts in works]
                )
            ends.append(env.now)

    env.run(until=env.process(server()))
    return ends


def cohorts(schedule, seed, rounds, sizes):
    """The clients of each round: the draws of the schedule from the run's streams, see
    `fedax.utils.random`."""
    root = jax.random.fold_in(jax.random.key(seed), 1)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    for t in range(rounds):
        ids, count = schedule.draw(stream(root, "cohort", t, 0), jax.numpy.asarray(offsets))
        yield np.asarray(ids)[: int(count)].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "phases"),
    [
        # per phase: vectors down and up, passes over the examples of 2 epochs
        (fedax.FedAvg(), [(1, 1, 2)]),
        (fedax.SCAFFOLD(option="II"), [(2, 2, 2)]),
    ],
    ids=["fedavg", "scaffold"],
)
@pytest.mark.parametrize("sampling", ["uniform", "proportional"])
def test_rounds_take_as_long_as_in_a_discrete_event_simulation(method, phases, sampling):
    task = regression()
    clock = Clock(**DRAWN)
    sizes = np.asarray(task.train.sizes)
    schedule = fedax.Schedule(cohort=3, epochs=2, batch_size=4, sampling=sampling)
    history = run(method, clock, schedule=schedule)
    bits = 64 if vector(history).dtype == np.float64 else 32
    message = bits * vector(history).size
    rounds = [
        [
            [(k, down * message, up * message, passes * sizes[k]) for k in cohort]
            for down, up, passes in phases
        ]
        for cohort in cohorts(schedule, SEED, ROUNDS, sizes)
    ]
    assert history.bits.up.tolist() == [
        sum(work[2] for phase in round for work in phase) for round in rounds
    ]
    np.testing.assert_allclose(history.clock.seconds, [0.0, *simulated(rounds, clock)], rtol=1e-12)
    spent = [
        sum(2.0 * n + 1e-3 * down + 3e-3 * up for phase in round for _, down, up, n in phase)
        for round in rounds
    ]
    np.testing.assert_allclose(history.clock.joules, np.cumsum([0.0, *spent]), rtol=1e-12)


@pytest.mark.slow
def test_phases_add_up_and_each_waits_for_its_slowest_client():
    """FedDANE: a gradient of everyone's examples, then local work of the cohort, here of
    everyone."""
    task = regression()
    sizes = np.asarray(task.train.sizes)
    speeds = np.arange(1.0, len(sizes) + 1)
    history = run(
        fedax.FedDANE(),
        Clock(speed=speeds),
        task,
        2,
        schedule=fedax.Schedule(epochs=3, batch_size=4),
    )
    phases = fedax.footprint(fedax.FedDANE()).phases
    expected = sum(
        ((phase.step_gradients * 3 + phase.full_gradients) * sizes / speeds).max()
        for phase in phases
    )
    assert len(phases) == 2
    np.testing.assert_allclose(history.logged["round_seconds"], [expected] * 2, rtol=1e-12)


def test_a_short_minibatch_counts_by_its_examples():
    task = regression()
    sizes = np.asarray(task.train.sizes)
    history = run(None, Clock(speed=10.0), task, 1, schedule=fedax.Schedule(steps=5, batch_size=4))
    examples = []
    for n in sizes:
        order = [min(4, n - i) for i in range(0, n, 4)]
        examples.append(sum((order * 5)[:5]))
    np.testing.assert_allclose(history.clock.seconds[-1], max(examples) / 10, rtol=1e-12)


@pytest.mark.slow
def test_drawn_work_is_the_work_that_is_done():
    """Stragglers and drawn numbers of epochs: minibatches of one example make steps and examples
    the same."""
    task = regression()
    schedule = fedax.Schedule(epochs=(1, 4), batch_size=1, conditions={"stragglers": 0.5})
    history = run(fedax.FedNova(), Clock(energy=1.0), task, 4, schedule=schedule)
    root = jax.random.fold_in(jax.random.key(SEED), 1)
    sizes = np.asarray(task.train.sizes)
    for t in range(4):
        steps = [
            int(
                schedule.work(
                    stream(root, "work", t, k), jax.numpy.int32(n), t, stream(root, "work", t)
                ).steps
            )
            for k, n in enumerate(sizes)
        ]
        assert history.logged["round_joules"][t] == sum(steps)


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [
        ("simulation", np.float32),
        pytest.param("simulation", np.float64, marks=pytest.mark.slow),
        pytest.param("chunked", np.float32, marks=pytest.mark.slow),
        pytest.param("eager", np.float32, marks=pytest.mark.slow),
    ],
)
def test_the_clock_changes_no_bit_and_is_the_same_on_all_engines(engine, dtype):
    engines = {
        "simulation": fedax.Simulation(devices=1),
        "chunked": fedax.Simulation(devices=1, chunk=2),
        "eager": fedax.Eager(),
    }
    schedule = fedax.Schedule(cohort=2, batch_size=4, conditions={"dropouts": 0.4})
    clock = Clock(**DRAWN)
    with jax.enable_x64(dtype == np.float64):
        options = {"schedule": schedule, "engine": engines[engine], "rounds": 4}
        plain = run(**options)
        clocked = run(clock=clock, **options)
        expected = run(clock=clock, **options | {"engine": engines["simulation"]})
    np.testing.assert_array_equal(vector(plain), vector(clocked))
    assert plain.bits.up.tolist() == clocked.bits.up.tolist()
    assert plain.clock is None
    assert clocked.clock.seconds.dtype == np.float64
    assert clocked.clock.seconds.tolist() == expected.clock.seconds.tolist()
    assert clocked.clock.joules.tolist() == expected.clock.joules.tolist()


def test_nodes_of_a_graph_send_to_each_neighbour():
    task = regression()
    clients = task.train.clients
    graph = fedax.Graph.star(clients)
    history = run(fedax.DSGD(graph=graph), Clock(up=1e3, energy_up=1.0, energy_down=1.0), task, 1)
    bits = int(history.bits.up[0])  # over all links
    message = bits // (2 * (clients - 1))
    # the node in the middle
    np.testing.assert_allclose(history.clock.seconds[-1], (clients - 1) * message / 1e3)
    assert history.clock.joules[-1] == 2 * bits  # every message is sent and received


@pytest.mark.slow
def test_grids_and_resumed_runs_have_the_same_clock(tmp_path):
    clock = Clock(**DRAWN)
    schedule = fedax.Schedule(cohort=2, batch_size=4)
    whole = run(clock=clock, schedule=schedule)
    half = run(clock=clock, schedule=schedule, rounds=3, checkpoint=tmp_path, checkpoint_every=3)
    again = run(clock=clock, schedule=schedule, checkpoint=tmp_path, checkpoint_every=3)
    resumed = run(clock=clock, schedule=schedule, resume=half)
    both = fedax.run_grid(
        [fedax.FedAvg()],
        regression(),
        seed=[SEED, 9],
        clock=clock,
        schedule=schedule,
        rounds=ROUNDS,
        solver=fedax.SGD(0.05),
    )
    for history in (again, resumed, both[0]):
        assert history.clock.seconds.tolist() == whole.clock.seconds.tolist()
        assert history.clock.joules.tolist() == whole.clock.joules.tolist()
    assert both[1].clock.seconds.tolist() != whole.clock.seconds.tolist()
    with pytest.raises(InvalidInput, match="clock"):
        run(clock=Clock(speed=1.0), schedule=schedule, checkpoint=tmp_path, checkpoint_every=3)


@pytest.mark.parametrize("kind", ["cohort", "deadline", "asynchronous"])
def test_the_server_takes_its_time_in_every_phase(kind):
    plain = Clock(latency=1.0)
    slow = Clock(latency=1.0, server_seconds=3.0, server_seconds_per_byte=0.25)
    options = {
        "cohort": {},
        "deadline": {"conditions": {"deadline": 2.0}},
        "asynchronous": {"asynchronous": {"concurrency": 2, "dispatch": "server_step"}},
    }[kind]
    schedule = fedax.Schedule(cohort=2, **options)
    history = run(clock=slow, schedule=schedule, rounds=3)
    bytes_up = 2 * vector(history).nbytes
    assert history.clock.seconds.tolist() == [t * (1 + 3 + 0.25 * bytes_up) for t in range(4)]
    assert run(clock=plain, schedule=schedule, rounds=3).clock.seconds.tolist() == [0, 1, 2, 3]


def test_uploads_wait_while_an_asynchronous_server_is_busy():
    """Clients that take 2 and 3 seconds, and a server that takes 2 for a step: by hand."""
    clock = Clock(latency=[2.0, 3.0], server_seconds=2.0)
    schedule = fedax.Schedule(cohort=1, weights="equal", asynchronous={"concurrency": 2})
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2, [[0.0], [1.0]])

    class Worked(fedax.Algorithm):
        citation = fedax.FedAvg.citation

        def round(self, fed, state):
            cohort = fed.sample()
            fed.log(worked=cohort.ids[0])
            return fed.average(self.train, cohort, state)

        def train(self, client, w):
            return fedax.Upload(w, reference=w)

    history = run(Worked(), clock, task, 4, schedule=schedule)
    # client 0 arrives at 2 and is sent away at 4; client 1 arrives at 3, waits until 4, and leaves
    # at 6; client 0 is back at 6, after which the server is busy until 8; client 1 at 9
    assert history.logged["worked"].tolist() == [0, 1, 0, 1]
    assert history.clock.seconds.tolist() == [0.0, 4.0, 6.0, 8.0, 11.0]


def test_budgets_end_runs_at_the_first_observation_that_has_spent_them():
    clock = Clock(latency=1800.0, energy=1.0)
    history = run(clock=clock, stop=fedax.Budget(hours=1.5), rounds=20, observe_every=2)
    assert (history.outcome.kind, history.clock.seconds.tolist()) == (
        "stopped",
        [0.0, 3600.0, 7200.0],
    )
    total = float(np.sum(regression().train.sizes))
    assert run(clock=clock, stop=fedax.Budget(joules=2 * total), rounds=20).rounds.tolist() == [
        0,
        1,
        2,
    ]
    # a run that is continued has spent what it spent before
    half = run(clock=clock, rounds=2)
    assert run(
        clock=clock, stop=fedax.Budget(hours=1.5), rounds=20, resume=half
    ).rounds.tolist() == [0, 1, 2, 3]
