"""Limit points of methods with partial participation and unequal work, against linear algebra."""

import numpy as np
import optax
import pytest

import fedax
from problems import quadratic, random_quadratic, regression, vector
from transcription import LR, ROUNDS, SCHEDULE, SEED, P, World

ONE = fedax.Simulation(devices=1)
A, B = random_quadratic(clients=6, seed=3)
OPTIMUM = np.linalg.solve(A.mean(0), np.einsum("kij,kj->i", A, B) / 6)


def test_fedadmm_reaches_the_optimum_with_half_of_the_clients():
    """Exact primal steps; FedAvg with the same does not."""
    rho = 0.5
    schedule = fedax.Schedule(cohort=3)
    solver = fedax.Exact(1e-12)
    options = {
        "solver": solver,
        "schedule": schedule,
        "rounds": 150,
        "observe_every": 150,
        "engine": ONE,
    }
    found = vector(fedax.run(fedax.FedADMM(rho=rho), quadratic(A, B), **options))
    assert np.linalg.norm(found - OPTIMUM) < 1e-7  # as near as the local solves are exact


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "solver", "sampling"),
    [
        (fedax.SCAFFOLD(), fedax.SGD(0.1), "poisson"),
        (fedax.SCAFFOLD(option="I"), fedax.SGD(0.1), "proportional_without_replacement"),
        (fedax.FedDyn(alpha=1.0), fedax.Exact(1e-12), "proportional"),
        (fedax.FedADMM(rho=1.0), fedax.Exact(1e-12), "uniform"),
    ],
)
def test_sums_over_all_clients_stay_true_however_they_are_drawn(method, solver, sampling):
    """Three draws of eight clients of unequal sizes: the run ends at the optimum of sum_k n_k / n
    f_k."""
    sizes = [1, 2, 3, 5, 8, 2, 1, 10]
    a, b = random_quadratic(clients=8, seed=1)
    p = np.array(sizes) / sum(sizes)
    optimum = np.linalg.solve(np.einsum("k,kij->ij", p, a), np.einsum("k,kij,kj->i", p, a, b))
    schedule = fedax.Schedule(cohort=3, sampling=sampling, steps=3, batch_size="full")
    options = {
        "solver": solver,
        "schedule": schedule,
        "rounds": 1000,
        "observe_every": 1000,
        "engine": ONE,
    }
    found = vector(fedax.run(method, quadratic(a, b, sizes), **options))
    np.testing.assert_allclose(found, optimum, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lr"), [(fedax.FedVARP, 0.5), (fedax.MIFA, 0.5)])
def test_last_changes_stand_for_clients_that_are_away(kind, lr):
    """The papers' server with a table of all clients, in NumPy; a client's work is FedAvg's."""
    world = World()
    table = np.zeros((5, 4))
    w = world.start
    for cohort in world.cohorts():
        before = table.copy()
        for k in cohort:
            table[k] = world.sgd(k, w)[0] - w
        news = np.average((table - before)[cohort], axis=0, weights=P[cohort])
        w = w + lr * (P @ table if kind is fedax.MIFA else P @ before + news)
    options = {"solver": fedax.SGD(LR), "schedule": SCHEDULE, "rounds": ROUNDS, "seed": SEED}
    for engine in (ONE, fedax.Eager()):
        history = fedax.run(kind(lr=lr), regression(), engine=engine, **options)
        np.testing.assert_allclose(vector(history), w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(history.state.mean, P @ table, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [3 * 64 * 4] * ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("kind", [fedax.FedVARP, fedax.MIFA])
def test_with_everybody_last_changes_are_fedavg(kind):
    options = {"solver": fedax.SGD(LR, momentum=0.5), "rounds": 4, "engine": ONE}
    schedule = fedax.Schedule(epochs=1, batch_size=4)
    remembered, plain = (
        vector(fedax.run(method, regression(), schedule=schedule, **options))
        for method in (kind(), fedax.FedAvg())
    )
    np.testing.assert_allclose(remembered, plain, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [fedax.FedVARP, fedax.MIFA])
def test_last_changes_end_where_fedavg_with_everybody_ends(kind):
    """However few of the clients of unequal sizes and unequal work come to a round; FedAvg goes on
    moving."""
    schedule = fedax.Schedule(cohort=2, batch_size=1, order="given")
    options = {"schedule": schedule, "rounds": 2000, "observe_every": 2000, "engine": ONE}
    rest = resting(0.01, WEIGHTS["size"], 0)
    remembered, plain = (
        vector(fedax.run(method, quadratic(A, B, SIZES), solver=fedax.SGD(0.01), **options))
        for method in (kind(lr=0.3), fedax.FedAvg(server=optax.sgd(0.3)))
    )
    np.testing.assert_allclose(remembered, rest, rtol=0, atol=1e-8)
    assert np.linalg.norm(plain - rest) > 1e-2


SIZES = [1, 2, 9, 4, 1, 20]
WEIGHTS = {"size": np.array(SIZES) / sum(SIZES), "equal": np.full(6, 1 / 6)}


def resting(lr, weights, power):
    """The w with sum_k p_k tau_k^-power (I - (I - lr A_k)^tau_k)(w - b_k) = 0: FedAvg with power 0,
    FedNova with power 1."""
    eye = np.eye(3)
    pulls = [
        p / steps**power * (eye - np.linalg.matrix_power(eye - lr * a, steps))
        for p, a, steps in zip(weights, A, SIZES, strict=True)
    ]
    return np.linalg.solve(sum(pulls), sum(pull @ b for pull, b in zip(pulls, B, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "power", "weights"), [(fedax.FedNova, 1, "size"), (fedax.FedAvg, 0, "equal")]
)
def test_fednova_is_consistent_under_unequal_steps(method, power, weights):
    """The run ends at its resting point; FedNova's tends to the optimum as the step size falls,
    FedAvg's does not."""
    p = WEIGHTS[weights]
    lr = 0.02
    schedule = fedax.Schedule(
        batch_size=1, order="given", weights=weights
    )  # client k takes as many steps as it has examples
    options = {"schedule": schedule, "rounds": 1500, "observe_every": 1500, "engine": ONE}
    found = vector(fedax.run(method(), quadratic(A, B, SIZES), solver=fedax.SGD(lr), **options))
    np.testing.assert_allclose(found, resting(lr, p, power), rtol=0, atol=1e-10)
    optimum = np.linalg.solve(np.einsum("k,kij->ij", p, A), np.einsum("k,kij,kj->i", p, A, B))
    far, near = (np.linalg.norm(resting(rate, p, power) - optimum) for rate in (2e-4, 2e-5))
    if method is fedax.FedNova:
        assert near == pytest.approx(far / 10, rel=0.05)  # linear in the step size
    else:
        assert min(far, near) > 0.05
