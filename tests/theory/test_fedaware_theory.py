"""FedAWARE's definitions and bounds on random gradients and quadratics, in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
        gradients = rng.normal(size=(5, 3))
        weights = rng.dirichlet(np.ones(5))
        found = fedaware.diversity(gradients, weights)
        assert found == pytest.approx(feddane.dissimilarity(gradients, weights))


def test_surrogate_diversity_may_be_below_1():
    """The paper's (6) says that it is not."""
    assert fedaware.diversity(np.array([[1.0], [3.0]]), surrogate=np.array([0.0, 1.0])) < 1


def test_divergence():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(6))
    surrogate = rng.dirichlet(np.ones(6))
    found = fedaware.divergence(surrogate, weights)
    assert found.square == pytest.approx(np.sum(surrogate**2 / weights**2))
    assert found.gap == pytest.approx(6 + found.square - 2 * found.linear)
    assert found.pearson == pytest.approx(np.sum((surrogate - weights) ** 2 / weights))
    assert found.pearson <= found.gap
    assert fedaware.divergence(weights, weights)[2:] == (0, 0)
    # rho of Theorem 4.1, 1 - sqrt(gap) - gap and less, has no sense once one of equal clients has
    # no weight
    assert fedaware.divergence(np.array([0.0, *[1 / 99] * 99])).gap > 1


def surrogate_gradient_bound(found, global_variance, gradient):
    """Theorem 4.2 and Lemma B.2, sharpened: weights that differ by a sum of 0 weigh deviations from
    the mean gradient alone, so that the Pearson divergence bounds their part."""
    return (gradient + math.sqrt(found.pearson * global_variance)) ** 2


def test_surrogate_gradient():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        gradients = rng.normal(size=(5, 3)) + rng.choice([0.0, 3.0])
        weights = rng.dirichlet(np.ones(5) * 3)
        surrogate = rng.dirichlet(np.ones(5))
        found = fedaware.divergence(surrogate, weights)
        given = {
            "global_variance": float(weights @ fedaware.dissimilarities(gradients, weights)),
            "gradient": float(np.linalg.norm(weights @ gradients)),
        }
        square = float(np.sum((surrogate @ gradients) ** 2))
        sharp = surrogate_gradient_bound(found, **given)
        mean = (1 + found.gap) * given["gradient"] ** 2
        printed = 2 * (mean + found.gap * given["global_variance"])
        assert square <= sharp * (1 + 1e-12) <= printed * (1 + 1e-9)


def test_the_sharp_bound_is_reached():
    """Deviations from the mean that are proportional to the change of the weights' ratio."""
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.ones(5) * 3)
    surrogate = rng.dirichlet(np.ones(5))
    v = np.array([1.0, 2.0])
    gradients = 3 * v + (surrogate / weights - 1)[:, None] * v
    variance = float(weights @ fedaware.dissimilarities(gradients, weights))
    found = fedaware.divergence(surrogate, weights)
    bound = surrogate_gradient_bound(
        found, global_variance=variance, gradient=float(np.linalg.norm(3 * v))
    )
    assert np.sum((surrogate @ gradients) ** 2) == pytest.approx(bound)


def test_eq_14_fails_at_a_stationary_point():
    gradients = np.array([[1.0], [-1.0]])
    surrogate = np.array([1.0, 0.0])
    gap = fedaware.divergence(surrogate).gap
    assert np.sum(((surrogate - 0.5) @ gradients) ** 2) > gap * np.sum(gradients.mean(0) ** 2) == 0


@pytest.mark.parametrize("wrong", ["local_steps", "dissimilarities"])
def test_numbers_out_of_their_range_are_named(wrong):
    given = {"local_steps": np.array([1, 2]), "dissimilarities": np.ones(2)}
    given[wrong] = -given[wrong]
    with pytest.raises(InvalidInput, match=wrong):
        fedaware.heterogeneity(rate=0.5, **given)


def drift(q, x, steps, rate):
    """The largest square distance from x of each client within its steps."""
    y = np.tile(x, (len(q.p), 1))
    most = np.zeros(len(q.p))
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
    momenta = q.gradients(np.ones(4))
    x = np.zeros(4)
    error = float(np.mean(np.sum((momenta - q.gradients(x)) ** 2, axis=1)))
    share = 1e-3
    drift_square = 1e-4
    assert error > share**2 * q.smoothness**2 * drift_square


@pytest.mark.slow
def test_stationarity_along_runs_of_the_shortest_combination():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        q = quadratics(rng, lowest=0.05)
        x = 5 * rng.normal(size=4)
        rate = rng.uniform(0.1, 1) / q.smoothness
        squares = []
        errors = []
        gap = q.gap(x)
        for _ in range(30):
            gradients = q.gradients(x)
            momenta = gradients + 0.1 * rng.normal(size=gradients.shape)
            weights = shortest(momenta) if rng.integers(2) else rng.dirichlet(np.ones(5))
            d = weights @ momenta
            gradient = q.p @ gradients
            squares.append(gradient @ gradient)
            errors.append(float(np.linalg.norm(d - gradient)))
            x = x - rate * d
        given = {"gap": gap, "rate": rate, "smoothness": q.smoothness}
        assert min(squares) <= fedaware.stationarity_bound(errors=np.array(errors), **given)
        assert np.mean(squares) <= fedaware.stationarity_bound(errors=np.array(errors), **given)


def test_eq_24_is_false_for_the_shortest_combination():
    """The gradients (2, 0) and (0, 1): their mean is longer than their shortest combination, by
    which (24) bounds it."""
    gradients = np.array([[2.0, 0.0], [0.0, 1.0]])
    square = math.sqrt(np.mean(np.sum(gradients**2, axis=1)))
    best = np.array([0.2, 0.8])
    own = fedaware.diversity(gradients, surrogate=best)
    bound = square / own
    assert bound == pytest.approx(np.linalg.norm(best @ gradients))
    assert np.linalg.norm(gradients.mean(0)) > 1.2 * bound
