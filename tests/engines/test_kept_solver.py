"""Local optimizers whose state clients keep between rounds, against Adam written out in NumPy."""

import functools

import numpy as np
import optax
import pytest

import fedax
from fedax.core import InvalidInput

SIZES = (7, 12, 5)
RATE = 0.05
B1 = 0.9
B2 = 0.999
EPS = 1e-8
RNG = np.random.default_rng(0)
CLIENTS = [{"x": RNG.normal(size=(n, 3)) + k, "y": RNG.normal(size=n)} for k, n in enumerate(SIZES)]
SCHEDULE = fedax.Schedule(steps=4, batch_size="full")
ENGINES = {
    "in turn": fedax.Simulation(devices=1),
    "in chunks": fedax.Simulation(chunk=2, devices=1),
    "offloaded": fedax.Simulation(devices=1, memory="host"),
    "eager": fedax.Eager(),
}


def loss(w, e):
    return (e["x"] @ w - e["y"]) ** 2 / 2


TASK = fedax.Task(np.full(3, 0.1), loss, CLIENTS)


@functools.cache
def history(engine="in turn", rounds=3, method=fedax.FedAvg, keep=True, **more):
    solver = fedax.Optax(optax.adam(RATE), keep=keep)
    settings = {"solver": solver, "schedule": SCHEDULE, "engine": ENGINES[engine]}
    return fedax.run(method(), TASK, rounds=rounds, **(settings | more))


def mean_of(w, models):
    return np.average(models, axis=0, weights=SIZES)


def rounds_of_adam(rounds, decay=0.0, server=mean_of):
    """Returns the server's model after some rounds; moments and counts stay at the clients."""
    w = np.full(3, 0.1)
    moments = [(np.zeros(3), np.zeros(3), 0) for _ in SIZES]
    for _ in range(rounds):
        models = []
        for k, client in enumerate(CLIENTS):
            local = w.copy()
            m, v, t = moments[k]
            for _ in range(4):
                g = client["x"].T @ (client["x"] @ local - client["y"]) / SIZES[k]
                m = B1 * m + (1 - B1) * g
                v = B2 * v + (1 - B2) * g**2
                t = t + 1
                local = (1 - RATE * decay) * local
                local = local - RATE * (m / (1 - B1**t)) / (np.sqrt(v / (1 - B2**t)) + EPS)
            models.append(local)
            moments[k] = m, v, t
        w = server(w, models)
    return w, moments


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_adam_goes_on_where_it_stopped(engine):
    w, moments = rounds_of_adam(3)
    found = history(engine)
    np.testing.assert_allclose(found.params, w, rtol=0, atol=1e-12)
    for k, (m, v, t) in enumerate(moments):
        adam = found.carry.solver_states.of(k)[0]
        np.testing.assert_allclose(adam.mu, m, rtol=0, atol=1e-12)
        np.testing.assert_allclose(adam.nu, v, rtol=0, atol=1e-12)
        assert int(adam.count) == t
    assert abs(history(engine, keep=False).params - w).max() > 1e-3


def test_diloco_has_the_outer_step_of_its_released_code():
    """The outer gradient is the model minus the plain mean of the workers' models, for PyTorch's
    SGD(lr=0.7, momentum=0.9, nesterov=True): d = g + 0.9 buffer, where buffer = 0.9 buffer + g.
    """
    buffer = np.zeros(3)

    def server(w, models):
        nonlocal buffer
        g = w - np.mean(models, axis=0)
        buffer = 0.9 * buffer + g
        return w - 0.7 * (g + 0.9 * buffer)

    w, _ = rounds_of_adam(4, 0.1, server)
    found = fedax.run(
        fedax.FedAvg(server=optax.sgd(0.7, momentum=0.9, nesterov=True)),
        TASK,
        solver=fedax.Optax(optax.adamw(RATE, weight_decay=0.1), keep=True),
        schedule=fedax.Schedule(steps=4, batch_size="full", weights="equal"),
        rounds=4,
    )
    np.testing.assert_allclose(found.params, w, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_clients_that_do_not_work_keep_theirs_and_all_engines_agree():
    schedule = fedax.Schedule(steps=4, batch_size="full", cohort=1)
    one, two = (history(engine, 4, schedule=schedule) for engine in ("in turn", "eager"))
    counts = [int(one.carry.solver_states.of(k)[0].count) for k in range(3)]
    assert sum(counts) == 16
    assert len(set(counts)) > 1
    np.testing.assert_allclose(one.params, two.params, rtol=0, atol=1e-12)


def test_the_state_is_counted_and_not_sent():
    kept = fedax.footprint(fedax.FedAvg(), TASK, solver=fedax.Optax(optax.adam(RATE), keep=True))
    fresh = fedax.footprint(fedax.FedAvg(), TASK, solver=fedax.Optax(optax.adam(RATE)))
    assert (kept.memory.vectors, kept.memory.numbers) == (2, 1)
    assert kept.phases == fresh.phases
    assert sum(fresh.memory) == 0


def test_momentum_that_is_kept_is_no_plain_step():
    solver = fedax.SGD(RATE, momentum=0.5, keep=True)
    v = np.zeros(3)
    w = np.full(3, 0.1)
    x = CLIENTS[0]["x"]
    y = CLIENTS[0]["y"]
    for _ in range(8):
        v = 0.5 * v + x.T @ (x @ w - y) / len(y)
        w = w - RATE * v
    task = fedax.Task(np.full(3, 0.1), loss, CLIENTS[:1])
    found = fedax.run(fedax.FedAvg(), task, solver=solver, schedule=SCHEDULE, rounds=2)
    np.testing.assert_allclose(found.params, w, rtol=0, atol=1e-12)
    with pytest.raises(InvalidInput, match="keep=True"):
        fedax.run(fedax.FedNova(), task, solver=solver, schedule=SCHEDULE, rounds=1)
    with pytest.raises(InvalidInput, match="several local problems"):
        fedax.start(fedax.Ditto(), task, solver=solver)
