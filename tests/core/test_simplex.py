"""The shortest convex combination against quadratic programming, and the projection against
bisection."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, nnls

from fedax.numerics.simplex import min_norm

COUNT = 6
solve = eqx.filter_jit(min_norm)


def found(vectors, valid=None, **options):
    vectors = jnp.asarray(vectors)
    valid = jnp.ones(len(vectors), bool) if valid is None else jnp.asarray(valid)
    return solve(vectors @ vectors.T, valid, **options)


def exact(vectors):
    """The shortest combination by non-negative least squares: x >= 0 near |V'x|^2 + (1'x - 1)^2 =
    min is a multiple of it."""
    scale = max(np.linalg.norm(vectors, axis=1).min(), 1e-300)
    weights = nnls(
        np.vstack([vectors.T / scale, np.ones(len(vectors))]),
        np.append(np.zeros(vectors.shape[1]), 1.0),
    )[0]
    return weights / weights.sum()


def random(seed, dim=8):
    return np.random.default_rng(seed).normal(size=(COUNT, dim))


def spread(seed, decades):
    """Lengths over many decades; all have something in common, so that the shortest combination is
    not zero."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(COUNT, 8)) + 2) * 10 ** rng.uniform(
        -decades / 2, decades / 2, size=(COUNT, 1)
    )


CASES = {
    **{f"random {seed}": random(seed) for seed in range(8)},
    **{f"a common part {seed}": random(seed) + 1 for seed in range(8)},
    **{f"rank 2, {seed}": random(seed, 2) @ np.eye(2, 8) for seed in range(4)},
    **{
        f"rank 2 beside the origin, {seed}": np.abs(random(seed, 2)) @ np.eye(2, 8)
        for seed in range(4)
    },
    "more vectors than dimensions": random(9, 3) + 0.7,
    "a zero vector": random(3) * (np.arange(COUNT) != 2)[:, None],
    "one vector six times": np.tile(random(0)[:1], (COUNT, 1)),
    "three vectors twice": np.repeat(random(4)[:3] + 1, 2, axis=0),
    "nearly equal": np.tile(random(0)[:1], (COUNT, 1)) + 1e-9 * random(1),
    "opposite": np.vstack([random(5)[:3], -random(5)[:3]]),
    "on a line": np.linspace(1, 2, COUNT)[:, None] * random(6)[:1],
    **{f"lengths over 4 decades, {seed}": spread(seed, 4) for seed in range(4)},
}


@pytest.mark.parametrize("case", CASES)
def test_the_shortest_combination_is_that_of_a_qp_solver(case):
    vectors = CASES[case]
    result = found(vectors)
    weights = exact(vectors)
    size = np.linalg.norm(vectors, axis=1).max()
    assert np.all(np.asarray(result.weights) >= 0)
    assert float(result.weights.sum()) == pytest.approx(1, abs=1e-12)
    point = np.asarray(result.weights) @ vectors
    expected = weights @ vectors
    np.testing.assert_allclose(point, expected, rtol=0, atol=1e-6 * size)
    assert abs(point @ point - expected @ expected) < 1e-6 * min(
        size**2, max(expected @ expected, 1e-6 * size**2)
    )
    assert float(result.gap) < 1e-12 * size**2


def test_lengths_over_eight_decades():
    """Then the certificate is rounding error of the longest, and still the objective is within
    it."""
    for seed in range(4):
        vectors = spread(seed, 8)
        result = found(vectors)
        weights = exact(vectors)
        excess = (
            np.linalg.norm(np.asarray(result.weights) @ vectors) ** 2
            - np.linalg.norm(weights @ vectors) ** 2
        ) / 2
        assert excess <= float(result.gap) + 1e-15 * (vectors**2).sum(1).max()
        assert float(result.gap) <= 1e-15 * (vectors**2).sum(1).max()


def test_orthogonal_vectors_get_weights_of_inverse_squares():
    lengths = np.array([1.0, 2, 3, 4, 5, 6])
    weights = np.asarray(found(np.diag(lengths)).weights)
    np.testing.assert_allclose(weights, lengths**-2 / (lengths**-2).sum(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("radius", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_in_a_box_it_is_that_of_slsqp(seed, radius):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(COUNT, 8)) + 0.5
    centre = rng.dirichlet(np.ones(COUNT))
    result = found(vectors, centre=jnp.asarray(centre), radius=jnp.asarray(radius))
    gram = vectors @ vectors.T
    expected = minimize(
        lambda weights: weights @ gram @ weights / 2,
        centre,
        jac=lambda weights: gram @ weights,
        bounds=[(max(c - radius, 0), min(c + radius, 1)) for c in centre],
        constraints={
            "type": "eq",
            "fun": lambda weights: weights.sum() - 1,
            "jac": lambda weights: np.ones(COUNT),
        },
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert expected.success
    weights = np.asarray(result.weights)
    assert np.all(np.abs(weights - centre) <= radius + 1e-12)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(weights @ vectors, expected.x @ vectors, rtol=0, atol=1e-6)
    assert weights @ gram @ weights / 2 == pytest.approx(expected.fun, abs=1e-6)


def test_no_room_leaves_the_centre():
    centre = np.array([0.1, 0.3, 0.2, 0.0, 0.25, 0.15])
    np.testing.assert_array_equal(
        found(random(0), centre=jnp.asarray(centre), radius=jnp.asarray(0.0)).weights, centre
    )


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 10])
def test_the_certificate_bounds_the_distance_to_the_minimum(steps):
    """Also where the iteration was cut short."""
    positive = False
    for seed in range(6):
        vectors = random(seed) + 0.5
        result = found(vectors, max_steps=steps)
        weights = exact(vectors)
        point = np.asarray(result.weights) @ vectors
        best = weights @ vectors
        excess = (point @ point - best @ best) / 2
        assert -1e-12 < excess <= float(result.gap) + 1e-12
        assert int(result.steps) <= steps
        positive |= excess > 1e-6
    assert positive or steps == 10


@pytest.mark.parametrize("fill", [0.0, 1.0, 1e6])
def test_invalid_vectors_get_no_weight(fill):
    """Whatever they hold: a zero vector would be the shortest, a copy of a valid one as good as
    that."""
    valid = np.array([True, False, True, True, False, True])
    vectors = random(1) + 0.5
    vectors[~valid] = fill * vectors[0]
    weights = np.asarray(found(vectors, valid).weights)
    assert np.all(weights[~valid] == 0)
    np.testing.assert_allclose(
        weights[valid] @ vectors[valid], exact(vectors[valid]) @ vectors[valid], rtol=0, atol=1e-6
    )


def test_zero_vectors_need_no_step():
    result = found(np.zeros((COUNT, 8)))
    assert float(result.weights.sum()) == 1
    assert (float(result.gap), int(result.steps)) == (0, 0)


def test_single_precision():
    with jax.enable_x64(False):
        for seed in range(4):
            vectors = (random(seed) + 0.5).astype(np.float32)
            result = found(vectors)
            assert result.weights.dtype == result.gap.dtype == np.float32
            assert int(result.steps) < 10_000  # it ends by its own tolerance
            weights = exact(vectors.astype(float))
            np.testing.assert_allclose(
                np.asarray(result.weights) @ vectors, weights @ vectors, rtol=0, atol=2e-3
            )
            assert float(result.gap) < 1e-4
