"""Observers of the theory against NumPy on quadratics, and the lemmas on what they see."""

import numpy as np
import pytest

import fedax
from fedax.observe import Constraints, LocalSpread
from problems import quadratic, random_quadratic

A, B = random_quadratic(clients=4, dim=3, high=3.0)
TASK = quadratic(A, B, sizes=[2, 5, 7, 1])
ENGINES = {"chunked": lambda: fedax.Simulation("chunked", chunk=3), "eager": fedax.Eager}
H, RATE = 5, 0.06


def values(x):
    """Every client's loss at its own row."""
    off = x - B
    return np.einsum("ki,kij,kj->k", off, A, off) / 2


OPTIMUM = np.linalg.solve(A.mean(0), np.einsum("kij,kj->i", A, B) / 4)
LEAST = float(values(np.tile(OPTIMUM, (4, 1))).mean())


@pytest.fixture(scope="module", params=ENGINES)
def local_run(request):
    schedule = fedax.Schedule(steps=H, batch_size="full", weights="equal")
    options = {
        "solver": fedax.SGD(RATE),
        "schedule": schedule,
        "rounds": 2,
        "observe": [LocalSpread(LEAST)],
    }
    return fedax.run(fedax.LocalGD(), TASK, engine=ENGINES[request.param](), **options)


@pytest.mark.slow
def test_the_spread_of_workers_between_synchronisations(local_run):
    x = np.zeros(3)
    for t in range(3):
        models = np.tile(x, (4, 1))
        for step in range(H):
            gradients, mean = np.einsum("kij,kj->ki", A, models - B), models.mean(0)
            seen = {
                name: local_run.metrics[name][t][step]
                for name in ("spread", "spread_gradient", "spread_gap")
            }
            apart = np.sum((models - mean) ** 2, axis=1).mean()
            assert seen["spread"] == pytest.approx(apart, rel=1e-10, abs=1e-12)
            assert seen["spread_gradient"] == pytest.approx(
                np.sum(gradients.mean(0) ** 2), rel=1e-10
            )
            assert seen["spread_gap"] == pytest.approx(
                values(np.tile(mean, (4, 1))).mean() - LEAST, rel=1e-8
            )
            models = models - RATE * gradients
        x = models.mean(0)
    assert float(local_run.metrics["spread"].max()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_constraints_multipliers_and_the_lagrangian(engine):
    method = fedax.FedBC(dual_lr=0.3, lam=0.5, gamma=0.01)
    options = {
        "solver": fedax.SGD(0.1),
        "schedule": fedax.Schedule(cohort=2, steps=3, batch_size="full"),
        "rounds": 3,
    }
    run = fedax.run(method, TASK, engine=ENGINES[engine](), observe=[Constraints()], **options)
    first = run.metrics["violation"][0]
    np.testing.assert_allclose(first, -0.01)  # all models are the global one
    assert run.metrics["lagrangian"][0] == pytest.approx(
        np.mean(values(np.zeros((4, 3))) - 0.5 * 0.01)
    )
    state = run.state.memory.all()
    models, lam, gamma = (np.asarray(rows) for rows in (state.x, state.dual.lam, state.dual.gamma))
    found = np.sum((models - np.asarray(run.params)) ** 2, axis=1) - gamma
    last = {name: series[-1] for name, series in run.metrics.items()}
    np.testing.assert_allclose(last["violation"], found, rtol=1e-10)
    np.testing.assert_array_equal(last["multiplier"], lam)
    told = np.mean(values(models) + lam * found)
    assert last["lagrangian"] == pytest.approx(told, rel=1e-10)
    assert last["violation_largest"] == pytest.approx(found.max())
    assert last["violated"] == np.mean(found > 0)
    assert (last["multiplier_smallest"], last["multiplier_largest"]) == (lam.min(), lam.max())


def test_methods_without_constraints_have_none():
    run = fedax.run(fedax.FedAvg(), TASK, rounds=0, observe=[Constraints()])
    assert not run.metrics["violation"].any()
    assert run.metrics["lagrangian"][0] == pytest.approx(values(np.zeros((4, 3))).mean())


def test_a_coin_that_always_ends_the_round_is_one_step():
    one, coin = (
        fedax.run(
            fedax.FedAvg(),
            TASK,
            solver=fedax.SGD(0.1),
            schedule=fedax.Schedule(batch_size="full", **work),
            rounds=0,
            observe=[LocalSpread()],
        ).metrics
        for work in ({"steps": 1}, {"sync_probability": 1.0})
    )
    assert coin["spread"].shape == (1, 1)
    np.testing.assert_array_equal(coin["spread_gradient"], one["spread_gradient"])
