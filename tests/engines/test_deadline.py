"""Rounds that do not wait for all clients: who counts against simpy and NumPy, traffic and joules,
and what they are refused with."""

import jax
import numpy as np
import pytest

import fedax
from fedax.core.scheduling.deadline import first_answers
from fedax.utils.random import stream
from problems import regression, vector

SEED = 3
ROUNDS = 6
SPEEDS = [40.0, 4.0, 90.0, 20.0, 1.0] * np.random.default_rng(0).lognormal(size=(100, 5))
DEVICES = fedax.Clock(
    speed=lambda clients, t: SPEEDS[t, clients],
    down=1e4,
    up=[500.0, 5e4, 3e3, 8e3, 2e4],
    latency=0.1,
    energy=2.0,
    energy_down=1e-3,
    energy_up=3e-3,
)


def run(method=None, clock=DEVICES, task=None, rounds=ROUNDS, **options):
    options = {
        "solver": fedax.SGD(0.05),
        "seed": SEED,
        "engine": fedax.Simulation(devices=1),
    } | options
    schedule = {"cohort": 3, "epochs": 2, "batch_size": 4} | options.pop("schedule", {})
    return fedax.run(
        method or fedax.FedAvg(),
        task or regression(),
        clock=clock,
        rounds=rounds,
        schedule=fedax.Schedule.of(schedule),
        **options,
    )


def simulated(clients, seconds, most, deadline):
    """A round by processes of simpy: who has answered when the server goes on, and when it does."""
    simpy = pytest.importorskip("simpy", reason="the independent simulation needs simpy")
    env = simpy.Environment()
    inbox = simpy.PriorityStore(env)
    taken = []

    def client(k, takes):
        yield env.timeout(takes)
        yield inbox.put(k)

    def server():
        alarm = env.timeout(deadline)
        need = len(clients) if most is None else min(most, len(clients))
        while len(taken) < need:
            yield env.timeout(env.peek() - env.now)
            yield env.timeout(0)  # all that arrive at this time have arrived
            while inbox.items and len(taken) < need:
                taken.append((yield inbox.get()))
            if alarm.processed:
                return

    for k, takes in zip(clients, seconds, strict=True):
        env.process(client(k, takes))
    env.run(until=env.process(server()))
    return taken, env.now


@pytest.mark.parametrize("part", range(2))
def test_who_answers_first_is_as_in_a_discrete_event_simulation(part):
    """On 100 random settings. Durations are whole numbers in half of them, so that clients arrive
    at the same time, and at the deadline."""
    for case in range(50):
        random = np.random.default_rng([part, case])
        asked = int(random.integers(1, 15))
        clients = random.permutation(40)[:asked]
        seconds = np.exp(random.normal(1.0, 1.0, asked))
        seconds = np.ceil(seconds) if case % 2 else seconds
        most = None if random.random() < 0.3 else int(random.integers(1, asked + 3))
        deadline = 1e6 if random.random() < 0.3 else float(random.integers(1, 8))
        counts, end = first_answers(clients, seconds, most, deadline)
        taken, time = simulated(clients, seconds, most, deadline)
        assert sorted(clients[counts].tolist()) == sorted(taken)
        assert end == time


def drawn(schedule, sizes, t):
    """The clients that a round asks: the draw of a schedule, from the run's streams."""
    root = jax.random.fold_in(jax.random.key(SEED), 1)
    offsets = jax.numpy.asarray(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    available = None
    rule = schedule.conditions.availability
    if rule is not None:
        available = rule.available(stream(root, "available", t), t, len(sizes))
    ids, count = schedule.draw(stream(root, "cohort", t, 0), offsets, None, available)
    return np.asarray(ids)[: int(count)]


@pytest.mark.parametrize(
    ("asks", "counted", "asking"),
    [
        pytest.param({"cohort": 4}, {"cohort": 2, "over_select": 1.7}, {}, marks=pytest.mark.slow),
        pytest.param({"cohort": 3}, {"cohort": 3, "deadline": 5.0}, {}, marks=pytest.mark.slow),
        (
            {"cohort": 5},
            {"cohort": 3, "over_select": 2.0, "deadline": 4.0},
            {"dropouts": 0.3, "sampling": "proportional_without_replacement"},
        ),
        ({"cohort": None}, {"cohort": None, "deadline": 3.0}, {"availability": "daily"}),
    ],
    ids=["over-selection", "deadline", "both", "everyone"],
)
def test_rounds_against_numpy(asks, counted, asking):
    """Clients, bits, seconds and joules, from the devices' characteristics and plain sums."""
    task = regression()
    sizes = np.asarray(task.train.sizes)
    common = {"epochs": 2, "batch_size": 4} | asking
    history = run(task=task, schedule=counted | common)
    value = lambda name, k, t: float(DEVICES.values(name, [k], t)[0])  # noqa: E731
    message = 64 * vector(history).size
    most = counted["cohort"]
    deadline = counted.get("deadline", np.inf)
    some_late = 0
    for t in range(ROUNDS):
        clients = drawn(fedax.Schedule.of(asks | common), sizes, t).tolist()
        arrival = {
            k: 0.1
            + message / value("down", k, t)
            + 2 * sizes[k] / value("speed", k, t)
            + message / value("up", k, t)
            for k in clients
        }
        inside = sorted((time, k) for k, time in arrival.items() if time <= deadline)
        takes = [k for _, k in inside[: most if "over_select" in counted else None]]
        whole = len(takes) == most or len(takes) == len(clients)
        end = max((arrival[k] for k in takes), default=0.0) if whole else deadline
        joules = sum(4.0 * sizes[k] + 4e-3 * message for k in takes)
        for k in set(clients) - set(takes):
            left = max(end - 0.1 - message / value("down", k, t), 0.0)
            joules += 1e-3 * message + 2.0 * min(2 * sizes[k], left * value("speed", k, t))
        assert history.bits.down[t] == len(clients) * message
        assert history.bits.up[t] == len(takes) * message
        assert history.logged["late"][t] == len(clients) - len(takes)
        np.testing.assert_allclose(history.logged["round_seconds"][t], end, rtol=1e-12)
        np.testing.assert_allclose(history.logged["round_joules"][t], joules, rtol=1e-12)
        some_late += len(clients) > len(takes)
    assert some_late, "nobody was late"


@pytest.mark.parametrize(
    ("method", "channel"),
    [
        (fedax.SCAFFOLD(option="I"), fedax.Channel(up=fedax.codecs.TopK(0.5))),
        pytest.param(
            fedax.FedAvg(),
            fedax.Channel(up=fedax.codecs.EF21(fedax.codecs.TopK(0.5, feedback=False))),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["scaffold", "ef21"],
)
def test_a_deadline_that_all_meet_changes_nothing(method, channel):
    plain = run(method, channel=channel)
    late = run(method, channel=channel, schedule={"deadline": 1e9})
    np.testing.assert_array_equal(vector(plain), vector(late))
    for name in ("round_seconds", "round_joules"):
        np.testing.assert_array_equal(plain.logged[name], late.logged[name])
    np.testing.assert_array_equal(plain.bits.down, late.bits.down)
    np.testing.assert_array_equal(plain.bits.up, late.bits.up)
    assert (late.logged["late"] == 0).all()


def test_late_clients_are_as_if_they_had_not_been_drawn():
    """With whole batches and everyone asked: the server's mean is that of those who count."""
    task = regression()
    slow = fedax.Clock(speed=[1e3, 1e3, 1e-3, 1e3, 1e-3])
    options = {"schedule": {"cohort": None, "deadline": 5.0}, "rounds": 1, "task": task}
    late = run(clock=slow, **options)
    kept = [k for k in range(5) if k not in (2, 4)]
    p = np.asarray(task.train.sizes, float)[kept]
    alone = []
    for k in kept:
        only = fedax.Clock(speed=[1e3 if i == k else 1e-3 for i in range(5)])
        alone.append(vector(run(clock=only, **options)))
    np.testing.assert_allclose(vector(late), p @ np.array(alone) / p.sum(), rtol=1e-12)


@pytest.mark.parametrize(
    "engine",
    [
        fedax.Eager(),
        pytest.param(fedax.Simulation(devices=1, chunk=2), marks=pytest.mark.slow),
        pytest.param(fedax.Simulation(memory="host", devices=1), marks=pytest.mark.slow),
    ],
    ids=["eager", "chunked", "host"],
)
def test_engines_agree(engine):
    """Also in rounds in which all are late."""
    schedule = {"cohort": 2, "over_select": 1.3, "deadline": 0.7}
    one, other = (
        run(schedule=schedule, engine=e, rounds=4) for e in (fedax.Simulation(devices=1), engine)
    )
    np.testing.assert_allclose(vector(one), vector(other), rtol=0, atol=1e-9)
    empty = one.bits.up == 0
    assert empty.any()
    assert not empty.all()
    for way in ("down", "up"):
        np.testing.assert_array_equal(getattr(one.bits, way), getattr(other.bits, way))
    for name in ("late", "round_seconds", "round_joules"):
        np.testing.assert_array_equal(one.logged[name], other.logged[name])


@pytest.mark.slow
def test_empty_rounds_keep_the_model():
    history = run(schedule={"deadline": 1e-3}, rounds=2)
    start = vector(run(rounds=0))
    np.testing.assert_array_equal(vector(history), start)
    assert history.outcome.ok
    assert history.bits.up.tolist() == [0, 0]
    assert history.bits.down.tolist() == [3 * 64 * start.size] * 2
    assert history.clock.seconds.tolist() == [0.0, 1e-3, 2e-3]
