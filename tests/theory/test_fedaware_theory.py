"""FedAWARE's definitions and bounds on random gradients and quadratics, in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedaware_printed import (
    gradient_bound_as_printed,
    rho_as_printed,
    stationarity_as_printed,
)
from fedax.core import InvalidInput
from fedax.numerics.simplex import min_norm
from fedax.theory import fedaware, feddane
from random_problems import quadratics


@jax.jit
def solve(gram):
    return min_norm(gram, jnp.ones(len(gram), bool)).weights


def shortest(vectors):
    return np.asarray(solve(jnp.asarray(vectors @ vectors.T)))


def test_diversity_is_feddanes_dissimilarity():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        gradients, weights = rng.normal(size=(5, 3)), rng.dirichlet(np.ones(5))
        found = fedaware.diversity(gradients, weights)
        assert found == pytest.approx(feddane.dissimilarity(gradients, weights))


def test_surrogate_diversity_may_be_below_1():
    """The paper's (6) says that it is not."""
    assert fedaware.diversity(np.array([[1.0], [3.0]]), surrogate=np.array([0.0, 1.0])) < 1


def test_divergence():
    rng = np.random.default_rng(0)
    weights, surrogate = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    found = fedaware.divergence(surrogate, weights)
    assert found.square == pytest.approx(np.sum(surrogate**2 / weights**2))
    assert found.gap == pytest.approx(6 + found.square - 2 * found.linear)
    assert found.pearson == pytest.approx(np.sum((surrogate - weights) ** 2 / weights))
    assert found.pearson <= found.gap
    assert fedaware.divergence(weights, weights)[2:] == (0, 0)
    # rho of Theorem 4.1, 1 - sqrt(gap) - gap and less, has no sense once one of equal clients has
    # no weight
    assert fedaware.divergence(np.array([0.0, *[1 / 99] * 99])).gap > 1


def test_surrogate_gradient():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        gradients = rng.normal(size=(5, 3)) + rng.choice([0.0, 3.0])
        weights, surrogate = rng.dirichlet(np.ones(5) * 3), rng.dirichlet(np.ones(5))
        found = fedaware.divergence(surrogate, weights)
        given = {
            "global_variance": float(weights @ fedaware.dissimilarities(gradients, weights)),
            "gradient": float(np.linalg.norm(weights @ gradients)),
        }
        square = float(np.sum((surrogate @ gradients) ** 2))
        sharp = fedaware.surrogate_gradient_bound(found, **given)
        assert (
            square
            <= sharp * (1 + 1e-12)
            <= fedaware.surrogate_gradient_bound(found, as_printed=True, **given) * (1 + 1e-9)
        )


def test_the_sharp_bound_is_reached():
    """Deviations from the mean that are proportional to the change of the weights' ratio."""
    rng = np.random.default_rng(1)
    weights, surrogate = rng.dirichlet(np.ones(5) * 3), rng.dirichlet(np.ones(5))
    v = np.array([1.0, 2.0])
    gradients = 3 * v + (surrogate / weights - 1)[:, None] * v
    variance = float(weights @ fedaware.dissimilarities(gradients, weights))
    found = fedaware.divergence(surrogate, weights)
    bound = fedaware.surrogate_gradient_bound(
        found, global_variance=variance, gradient=float(np.linalg.norm(3 * v))
    )
    assert np.sum((surrogate @ gradients) ** 2) == pytest.approx(bound)


def test_eq_14_fails_at_a_stationary_point():
    gradients, surrogate = np.array([[1.0], [-1.0]]), np.array([1.0, 0.0])
    gap = fedaware.divergence(surrogate).gap
    assert np.sum(((surrogate - 0.5) @ gradients) ** 2) > gap * np.sum(gradients.mean(0) ** 2) == 0


def drift(q, x, steps, rate):
    """The largest square distance from x of each client within its steps."""
    y, most = np.tile(x, (len(q.p), 1)), np.zeros(len(q.p))
    for k in range(steps.max()):
        y = np.where((k < steps)[:, None], y - rate * q.gradients(y), y)
        most = np.maximum(most, np.sum((y - x) ** 2, axis=1))
    return most


def test_the_step_size_must_fit_the_smoothness():
    """With rate 1/K alone, as the lemma asks for, a steep client leaves its bound."""
    q = quadratics(np.random.default_rng(0), clients=2, dim=1)
    q = q._replace(a=np.full((2, 1, 1), 50.0), b=np.zeros((2, 1)))
    found = drift(q, np.ones(1), np.array([10, 10]), 0.1)
    assert found.max() > 5 * 0.1 * 6 * 10 * 50.0**2


def test_lemma_4_1_as_printed_fails():
    """A momentum that is hardly renewed keeps its old value while the model moves on; nothing
    drifts."""
    q = quadratics(np.random.default_rng(3), lowest=0.5)
    momenta, x = q.gradients(np.ones(4)), np.zeros(4)
    error, share, drift_square = (
        float(np.mean(np.sum((momenta - q.gradients(x)) ** 2, axis=1))),
        1e-3,
        1e-4,
    )
    assert error > share**2 * q.smoothness**2 * drift_square


def test_stationarity_along_runs_of_the_shortest_combination():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        q = quadratics(rng, lowest=0.05)
        x, rate, squares, errors = (
            5 * rng.normal(size=4),
            rng.uniform(0.1, 1) / q.smoothness,
            [],
            [],
        )
        gap = q.gap(x)
        for _ in range(30):
            gradients = q.gradients(x)
            momenta = gradients + 0.1 * rng.normal(size=gradients.shape)
            weights = shortest(momenta) if rng.integers(2) else rng.dirichlet(np.ones(5))
            d, gradient = weights @ momenta, q.p @ gradients
            squares.append(gradient @ gradient)
            errors.append(float(np.linalg.norm(d - gradient)))
            x = x - rate * d
        given = {"gap": gap, "rate": rate, "smoothness": q.smoothness}
        assert min(squares) <= fedaware.stationarity_bound(errors=np.array(errors), **given)
        assert np.mean(squares) <= fedaware.stationarity_bound(errors=np.array(errors), **given)


def test_theorem_4_1_as_printed():
    """Term by term in plain Python, with three rounds of surrogate weights near the clients'
    own."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        weights, steps, diversities = (
            rng.dirichlet(np.full(3, 50.0)),
            np.array([2, 5, 3]),
            rng.uniform(1, 3, size=3),
        )
        tilde = [weights + t * np.array([0.01, -0.01, 0.0]) for t in (0.0, 0.3, 1.0)]
        eta, beta, smooth, largest, local, between, unequal, rest = (
            *rng.uniform(0.01, 0.05, size=3),
            *rng.uniform(size=5),
        )
        right = rest
        for each, d in zip(tilde, diversities, strict=True):
            chi2 = sum(float(a / b) ** 2 for a, b in zip(each, weights, strict=True))
            chi = sum(float(a / b) for a, b in zip(each, weights, strict=True))
            g = max(3 + chi2 - 2 * chi, 0.0)
            mean = sum(float(p * k) for p, k in zip(weights, steps, strict=True))
            rho = 1 - math.sqrt(g) - g - 6 * mean * beta * smooth * largest * math.sqrt(chi2) / d
            noise = 5 * eta * (local + 6 * 2**2 * between) + unequal
            right += beta * smooth * largest * math.sqrt(chi2) / (3 * rho * d) * math.sqrt(noise)
            one = rho_as_printed(
                fedaware.divergence(each, weights),
                mean_steps=mean,
                share=beta,
                smoothness=smooth,
                gradient_bound=largest,
                surrogate_diversity=float(d),
            )
            assert one == pytest.approx(rho, rel=1e-6)
        found = stationarity_as_printed(
            [fedaware.divergence(each, weights) for each in tilde],
            surrogate_diversities=diversities,
            local_steps=steps,
            rate=eta,
            share=beta,
            smoothness=smooth,
            gradient_bound=largest,
            local_variance=local,
            global_variance=between,
            heterogeneity=unequal,
            weights=weights,
            optimization=rest,
        )
        assert found == pytest.approx(right, rel=1e-6)


def test_theorem_4_1_as_printed_says_nothing_with_a_client_left_out():
    given = {
        "surrogate_diversities": np.ones(1),
        "local_steps": np.ones(2, int),
        "rate": 0.1,
        "share": 0.1,
    }
    given |= {
        "smoothness": 1.0,
        "gradient_bound": 0.0,
        "local_variance": 0.0,
        "global_variance": 0.0,
        "heterogeneity": 0.0,
    }
    left_out = fedaware.divergence(np.array([1.0, 0.0]))
    with pytest.raises(
        InvalidInput,
        match=r"stationarity_as_printed, rho: got -2.4.*; allowed: "
        r"numbers above 0",
    ):
        stationarity_as_printed([left_out], **given)
    with pytest.raises(
        InvalidInput,
        match="got 2 divergences and 1 diversities; allowed: one of each for every round",
    ):
        stationarity_as_printed([left_out] * 2, **given)


def test_eq_24_is_false_for_the_shortest_combination():
    """The gradients (2, 0) and (0, 1): their mean is longer than their shortest combination, by
    which (24) bounds it."""
    gradients = np.array([[2.0, 0.0], [0.0, 1.0]])
    square = math.sqrt(np.mean(np.sum(gradients**2, axis=1)))
    best = np.array([0.2, 0.8])
    own = fedaware.diversity(gradients, surrogate=best)
    bound = gradient_bound_as_printed(gradient_bound=square, surrogate_diversity=own)
    assert bound == pytest.approx(np.linalg.norm(best @ gradients))
    assert np.linalg.norm(gradients.mean(0)) > 1.2 * bound
