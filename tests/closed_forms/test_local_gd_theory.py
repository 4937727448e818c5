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
from fedax.core import InvalidInput
from fedax.theory import local_gd

INTERVALS = (1, 4, 16)
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


# f* of the pooled examples, sigma^2 there and max L_m, as computed elsewhere for blocks of
# consecutive examples
KNOWN = {
    122: (0.32362128215943686, 0.00542725, 1.62748),
    112: (0.014485866128334239, 0.000185239, 3.88629),
}


@pytest.mark.slow
def test_optimum_and_constants(convex):
    least, variance, worst = KNOWN[len(convex.optimum)]
    pooled = newton(*convex.f[:3])
    assert value(pooled, *convex.f[:3]) == pytest.approx(least, abs=1e-12)
    assert spread_at(pooled, convex.clients) == pytest.approx(variance, rel=3e-6)
    assert convex.worst == pytest.approx(worst, rel=3e-6)
    # blocks differ by one example, so that clients count alike at a slightly different optimum
    assert convex.variance == pytest.approx(variance, rel=1e-2)


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
    rate, steps = local_gd.step_size(convex.worst, interval), 128
    options = {
        "variance": convex.variance,
        "smoothness": convex.worst,
        "interval": interval,
        "steps": steps,
    }
    excess = descend(convex, convex.optimum, interval, rate, steps)[0]
    assert -1e-14 < excess <= local_gd.bound(distance=0.0, **options)
    assert excess < 1e-14 or interval > 1


@pytest.mark.slow
def test_the_floor_grows_with_the_interval(convex):
    """With the step size 1/L of the experiments, beyond the theorem: local steps leave the optimum,
    the farther the more."""
    rate = 1 / smoothness(convex.f[0], convex.task.l2)
    floors = [descend(convex, convex.optimum, interval, rate, 128)[1] for interval in INTERVALS]
    assert floors[0] < 1e-14
    assert 1e-8 < 2 * floors[1] < floors[2]


def test_communications_are_enough():
    """With the step size 1/(4L) or below and the H that belong to the accuracy, both terms of the
    bound are half of it."""
    distance, spread, smooth = 3.0, 0.4, 2.0
    for accuracy in (10.0, 0.3, 0.01, 1e-4):
        scale = max(smooth, math.sqrt(3 * spread * smooth / accuracy))
        interval = 5
        rate = 1 / (4 * scale * interval)
        steps = math.ceil(4 * distance**2 / (accuracy * rate))
        found = local_gd.bound(
            distance=distance,
            variance=spread,
            smoothness=smooth,
            interval=interval,
            steps=steps,
            rate=rate,
        )
        assert found <= accuracy * (1 + 1e-12)
        needed = local_gd.communications(
            distance=distance, variance=spread, smoothness=smooth, accuracy=accuracy
        )
        assert needed == pytest.approx(4 * distance**2 / (accuracy * rate) / interval)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("distance", -1.0),
        ("variance", math.nan),
        ("smoothness", 0.0),
        ("interval", 0),
        ("steps", 0),
    ],
)
def test_bad_numbers_are_refused(name, value):
    options = {
        "distance": 1.0,
        "variance": 1.0,
        "smoothness": 1.0,
        "interval": 1,
        "steps": 1,
        name: value,
    }
    with pytest.raises(InvalidInput, match=rf"bound\({name}=\.\.\.\): got {value}; allowed: "):
        local_gd.bound(**options)


def test_the_bound_is_not_for_larger_steps():
    options = {"distance": 1.0, "variance": 1.0, "smoothness": 1.0, "interval": 4, "steps": 8}
    local_gd.bound(rate=1 / 16, **options)
    with pytest.raises(
        InvalidInput,
        match=r"bound\(rate=...\): got 0.07; allowed: numbers in "
        r"\(0, 1/\(4LH\) = 0.0625\]",
    ):
        local_gd.bound(rate=0.07, **options)
