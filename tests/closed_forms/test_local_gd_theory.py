"""Local gradient descent on real convex problems, against its theorem; optimum and constants in
NumPy."""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from convex import gradient, newton, smoothness, value
from fedax.theory import local_gd

INTERVALS = (1, 16)
CLIENTS = 20


class From(eqx.Module):
    """A starting point that is data, so that another one is no other program."""

    w: jax.Array

    def __call__(self, key):
        return self.w


class Problem(NamedTuple):
    """The task, f with all clients alike, its optimum, and the constants of the theorem."""

    task: fedax.Task
    clients: list
    f: tuple
    optimum: np.ndarray
    steepest: np.ndarray  # the direction in which the examples lie
    worst: float  # smoothness of the least smooth client
    variance: float

    def excess(self, w):
        return value(w, *self.f) - value(self.optimum, *self.f)


@functools.cache
def problem(name, folder):
    task = fedax.task(name, clients=CLIENTS, folder=str(folder))
    parts = [task.train[k] for k in range(CLIENTS)]
    clients = [(np.asarray(part["x"], float), 2.0 * part["y"] - 1, task.l2) for part in parts]
    a, signs = (np.concatenate([client[i] for client in clients]) for i in (0, 1))
    weights = np.concatenate(
        [np.full(len(client[0]), 1 / (CLIENTS * len(client[0]))) for client in clients]
    )
    optimum = newton(a, signs, task.l2, weights)
    steepest = np.linalg.eigh(a.T @ a)[1][:, -1]
    worst = max(smoothness(client[0], task.l2) for client in clients)
    return Problem(
        task,
        clients,
        (a, signs, task.l2, weights),
        optimum,
        steepest,
        worst,
        spread_at(optimum, clients),
    )


def spread_at(w, clients):
    return local_gd.variance(np.array([gradient(w, *client) for client in clients]))


@pytest.fixture(params=["a5a", "mushrooms"])
def convex(request, data_folder):
    if not (data_folder / "libsvm").is_dir():
        pytest.skip("no LIBSVM files")
    return problem(request.param, data_folder)


def descend(convex, start, interval, rate, steps):
    """The suboptimality of the mean of the iterates and of the last one."""
    task = eqx.tree_at(lambda task: task.start, convex.task, From(jnp.asarray(start)))
    schedule = fedax.Schedule(steps=interval, batch_size="full", weights="equal")
    options = {
        "schedule": schedule,
        "rounds": steps // interval,
        "observe_every": steps // interval,
    }
    history = fedax.run(fedax.LocalGD(returned="mean"), task, solver=fedax.SGD(rate), **options)
    assert history.outcome.ok
    assert float(history.state.time) == steps
    return [convex.excess(np.asarray(w)) for w in (history.params, history.state.x)]


@pytest.mark.slow
@pytest.mark.parametrize("interval", INTERVALS)
def test_theorem_1_far_from_the_optimum(convex, interval):
    """From a point so steep, and for so many steps, that the bound says more than that f does not
    rise."""
    away = 2.0 if len(convex.optimum) == 122 else 4.0
    steps = interval * (48 if len(convex.optimum) == 122 else 208)
    start = convex.optimum + away * convex.steepest
    rate = local_gd.step_size(convex.worst, interval)
    bound = local_gd.bound(
        distance=away,
        variance=convex.variance,
        smoothness=convex.worst,
        interval=interval,
        steps=steps,
    )
    assert bound < 0.85 * convex.excess(start)
    assert descend(convex, start, interval, rate, steps)[0] <= bound


@pytest.mark.slow
@pytest.mark.parametrize("interval", INTERVALS)
def test_theorem_1_from_the_optimum(convex, interval):
    """There the bound is its second term alone, whatever the number of steps; with H = 1 nothing
    moves at all."""
    rate = local_gd.step_size(convex.worst, interval)
    steps = 128
    options = {
        "variance": convex.variance,
        "smoothness": convex.worst,
        "interval": interval,
        "steps": steps,
    }
    excess = descend(convex, convex.optimum, interval, rate, steps)[0]
    assert -1e-14 < excess <= local_gd.bound(distance=0.0, **options)
    assert excess < 1e-14 or interval > 1


def test_communications_are_enough():
    """With the step size 1/(4L) or below and the H that belong to the accuracy, both terms of the
    bound are half of it."""
    setting = {"distance": 3.0, "variance": 0.4, "smoothness": 2.0}
    for accuracy in (10.0, 0.01):
        scale = max(2.0, math.sqrt(3 * 0.4 * 2.0 / accuracy))
        interval = 5
        rate = 1 / (4 * scale * interval)
        steps = math.ceil(4 * 3.0**2 / (accuracy * rate))
        found = local_gd.bound(interval=interval, steps=steps, rate=rate, **setting)
        assert found <= accuracy * (1 + 1e-12)
        needed = local_gd.plan(accuracy=accuracy, **setting).communications
        assert needed == pytest.approx(4 * 3.0**2 / (accuracy * rate) / interval)
