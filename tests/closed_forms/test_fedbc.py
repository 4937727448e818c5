"""FedBC against its equations in NumPy, on quadratics f_k(w) = (w - b_k)' A_k (w - b_k) / 2."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.utils.random import stream
from problems import quadratic, random_quadratic, vector

A, B = random_quadratic()
LR = 0.1


def run(algorithm, rounds, schedule, seed=5):
    engine = fedax.Simulation(devices=1)
    solver = fedax.SGD(LR)
    return fedax.run(
        algorithm,
        quadratic(A, B),
        solver=solver,
        schedule=schedule,
        rounds=rounds,
        seed=seed,
        engine=engine,
        personal=True,
    )


def cohort_of(round, schedule, seed=5):
    """The cohort that a round draws."""
    root = jax.random.fold_in(jax.random.key(seed), 1)
    ids, count = schedule.draw(stream(root, "cohort", round, 0), jnp.arange(5, dtype=jnp.int32))
    return np.asarray(ids)[: int(count)]


def descend(k, x, z, lam, steps):
    for _ in range(steps):
        x = x - LR * (A[k] @ (x - B[k]) + 2 * lam * (x - z))
    return x


def own_models(history):
    return np.asarray(jax.tree.leaves(history.personal)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("momentum", "learn", "start"),
    [(0.0, True, "own"), (0.5, True, "global"), (0.5, False, "own")],
)
def test_fedbc_against_its_equations(momentum, learn, start):
    """Alg. 1 and 2, eq. (9), (11), (13), with partial participation, and multipliers, tolerances
    and bounds of each client."""
    alpha = 0.4
    rounds = 6
    lam = np.array([0.1, 0.2, 0.0, 0.3])
    gamma = np.array([0.02, 0.0, 0.5, 0.01])
    low = np.array([0.05, 0.0, 0.1, 0.2])
    high = np.array([0.6, 0.5, 0.4, 3.0])
    method = fedax.FedBC(
        dual_lr=alpha,
        lam=lam.copy(),
        gamma=gamma.copy(),
        learn_gamma=learn,
        lam_min=low,
        lam_max=high,
        dual_momentum=momentum,
        start=start,
    )
    schedule = fedax.Schedule(cohort=3, steps=5, batch_size="full")
    found = run(method, rounds, schedule)
    z = np.zeros(3)
    own = np.zeros((4, 3))
    lam = np.clip(lam, low, high)
    lam_speed = np.zeros(4)
    gamma_speed = np.zeros(4)
    for t in range(rounds):
        cohort = cohort_of(t, schedule)
        for k in cohort:
            own[k] = descend(k, own[k] if start == "own" else z, z, lam[k], 5)
            lam_speed[k] = momentum * lam_speed[k] + (own[k] - z) @ (own[k] - z) - gamma[k]
            gamma_speed[k] = momentum * gamma_speed[k] + lam[k]
            lam[k] = np.clip(lam[k] + alpha * lam_speed[k], low[k], high[k])
            gamma[k] += alpha * gamma_speed[k] if learn else 0
        z = np.average(own[cohort], axis=0, weights=lam[cohort])
    np.testing.assert_allclose(vector(found), z, atol=1e-13, rtol=0)
    np.testing.assert_allclose(own_models(found), own, atol=1e-13, rtol=0)


def test_the_released_codes_shared_buffer():
    """One heavy-ball optimizer over the vectors of all multipliers and tolerances, a step of it
    after each client's work.

    Tolerances begin high for some, so that multipliers fall to the bound 0 too.
    """
    alpha = 0.1
    theta = 0.5
    rounds = 7
    lam = np.full(4, 0.1)
    gamma = np.array([0.0, 2.0, 0.3, 0.0])
    method = fedax.FedBC(
        dual_lr=alpha,
        lam=lam.copy(),
        gamma=gamma.copy(),
        start="global",
        dual_momentum=theta,
        dual_buffer="shared",
    )
    schedule = fedax.Schedule(cohort=3, steps=5, batch_size="full")
    found = run(method, rounds, schedule)
    z = np.zeros(3)
    own = np.zeros((4, 3))
    lam_buffer = np.zeros(4)
    gamma_buffer = np.zeros(4)
    touched = False  # whether a multiplier fell to the bound
    for t in range(rounds):
        cohort = cohort_of(t, schedule)
        for k in cohort:
            own[k] = descend(k, z, z, lam[k], 5)
            lam_slope = np.zeros(4)
            gamma_slope = np.zeros(4)
            lam_slope[k], gamma_slope[k] = (own[k] - z) @ (own[k] - z) - gamma[k], lam[k]
            lam_buffer = theta * lam_buffer + lam_slope
            gamma_buffer = theta * gamma_buffer + gamma_slope
            touched |= bool((lam + alpha * lam_buffer < 0).any())
            lam = np.maximum(lam + alpha * lam_buffer, 0)
            gamma = gamma + alpha * gamma_buffer
        z = np.average(own[cohort], axis=0, weights=lam[cohort] if lam[cohort].any() else None)
    assert touched
    np.testing.assert_allclose(vector(found), z, atol=1e-12, rtol=0)


@pytest.mark.slow
def test_few_local_steps_from_the_own_model_reach_the_stationary_point():
    """With fixed multipliers, everybody at work: eq. (10)'s point has A_k (x_k - b_k) + 2 lam_k
    (x_k - z) = 0 for all k.

    From the global model the local iterates are where a few steps from z lead, which is not that
    point."""
    lam = np.array([0.5, 1.0, 2.0, 0.8])
    schedule = fedax.Schedule(steps=1, batch_size="full")

    def residual(start):
        found = run(fedax.FedBC(dual_lr=0.0, lam=lam, start=start), 600, schedule)
        z = vector(found)
        own = own_models(found)
        return max(
            np.linalg.norm(A[k] @ (own[k] - B[k]) + 2 * lam[k] * (own[k] - z)) for k in range(4)
        )

    assert residual("own") < 1e-10
    assert residual("global") > 0.1


def test_one_step_from_the_global_model_does_not_see_the_multiplier():
    schedule = fedax.Schedule(steps=1, batch_size="full")
    weak, strong = (
        run(fedax.FedBC(dual_lr=0.0, lam=lam, start="global"), 5, schedule) for lam in (0.1, 2.0)
    )
    np.testing.assert_allclose(vector(weak), vector(strong), atol=1e-14, rtol=0)
