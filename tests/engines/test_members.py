"""Settings and seeds as one program: every member's numbers are those of its own run."""

import jax
import numpy as np
import pytest

import fedax
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions
from problems import regression, vector

# how many settings and seeds, and where
SHAPES = {
    "settings and seeds in turn": (2, 3, lambda: fedax.Simulation(devices=2)),
    "seeds in turn": (1, 3, lambda: fedax.Simulation(devices=2)),
    "seeds as lanes": (3, 2, lambda: fedax.Simulation(chunk=2, devices=2)),
    "one device": (3, 3, lambda: fedax.Simulation(devices=1)),
    "eager": (1, 2, fedax.Eager),
}
OPTIONS = {
    "solver": fedax.SGD(0.05),
    "schedule": fedax.Schedule(cohort=2, steps=2, batch_size=4),
    "rounds": 4,
    "observe_every": 2,
    "observe": [fedax.observe.TrainLoss(), fedax.observe.Dissimilarity()],
}


def grid_of(settings):
    return [fedax.FedBC(dual_lr=0.1 + 0.2 * i, lam=0.1) for i in range(settings)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_members_are_runs(shape):
    settings, seeds, engine = SHAPES[shape]
    numbers = [7 * i + 1 for i in range(seeds)]
    together = fedax.run_grid(
        grid_of(settings), regression(), seed=numbers, engine=engine(), personal=True, **OPTIONS
    )
    assert len(together) == settings * seeds
    for i, history in enumerate(together):
        method = grid_of(settings)[i // seeds]
        seed = numbers[i % seeds]
        alone = fedax.run(
            method,
            regression(),
            seed=seed,
            engine=fedax.Simulation(devices=1),
            personal=True,
            **OPTIONS,
        )
        np.testing.assert_allclose(vector(history), vector(alone), rtol=1e-12, atol=1e-12)
        for own, expected in zip(
            jax.tree.leaves(history.personal), jax.tree.leaves(alone.personal), strict=True
        ):
            np.testing.assert_allclose(own, expected, rtol=1e-12, atol=1e-12)
        for name, values in alone.metrics.items():
            np.testing.assert_allclose(history.metrics[name], values, rtol=1e-10, err_msg=name)
        for way in ("down", "up"):
            assert getattr(history.bits, way).tolist() == getattr(alone.bits, way).tolist()
    assert len({vector(history).tobytes() for history in together}) == settings * seeds


@pytest.mark.parametrize(
    ("examples", "runs", "devices"), [(1, 1, 1), (50_000, 1, 2), (15_000, 1, 1), (15_000, 3, 2)]
)
def test_small_rounds_have_one_device(examples, runs, devices):
    """A hundred parameters times the examples of all runs, up to 4,000,000: one device."""
    clients = np.ones((1, examples, 1))
    task = fedax.Task(np.zeros(100), lambda w, x: ((w[None] - x) ** 2).sum(1), clients)
    options = RunOptions.of({"schedule": fedax.Schedule(steps=1, batch_size="full")})
    grid = Grid([fedax.FedProx(mu=float(i)) for i in range(runs)], task, [0], options)
    assert grid.program.devices == devices
