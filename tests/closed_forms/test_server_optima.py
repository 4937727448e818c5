"""Server rules that iterate reach their optimum, from any start and at any scale; against SciPy and
NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import fedax
from fedax.core import Gathered
from fedax.numerics.simplex import min_norm

RNG = np.random.default_rng(3)
SPREAD = RNG.normal(size=(7, 4)) + 1.5
SETS = {
    "random": SPREAD,
    "duplicates": np.repeat(SPREAD[:4], 2, axis=0),
    "collinear": np.linspace(0.5, 2, 6)[:, None] * SPREAD[:1] + 1.0,
    "one far longer": SPREAD * np.array([1e5, *[1] * 6])[:, None],
    "lengths of all sizes": SPREAD * 10.0 ** np.linspace(-3, 3, 7)[:, None],
    "two": SPREAD[:2],
    "one": SPREAD[:1],
}


def shortest(vectors):
    """The length of the shortest convex combination, by SciPy."""
    v = np.asarray(vectors, np.float64)
    v = v / np.abs(v).max()
    best = np.inf
    for start in (np.full(len(v), 1 / len(v)), np.eye(len(v))[np.argmin((v**2).sum(1))]):
        unit = v / np.sqrt((v**2).sum(1, keepdims=True)).min()
        found = scipy.optimize.minimize(
            lambda x, u=unit: ((x @ u) ** 2).sum() / 2,
            start,
            jac=lambda x, u=unit: u @ (x @ u),
            bounds=[(0, 1)] * len(v),
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        x = np.maximum(found.x, 0)
        best = min(best, np.linalg.norm(x / x.sum() @ v))
    return best * np.abs(np.asarray(vectors, np.float64)).max()


@pytest.mark.parametrize(
    ("name", "start"),
    [*((name, "shortest") for name in SETS), ("random", "mean"), ("one far longer", "first")],
)
def test_the_shortest_combination(name, start):
    vectors = SETS[name].astype(np.float32)
    count = len(vectors)
    centre = {
        "shortest": None,
        "mean": jnp.full(count, 1 / count, jnp.float32),
        "first": jnp.eye(count, dtype=jnp.float32)[0],
    }
    with jax.enable_x64(False):
        found = jax.jit(min_norm)(
            jnp.asarray(vectors @ vectors.T), jnp.ones(count, bool), centre[start]
        )
    weights = np.asarray(found.weights, np.float64)
    assert weights.min() >= 0
    assert abs(weights.sum() - 1) < 1e-5
    assert np.linalg.norm(weights @ vectors.astype(np.float64)) <= shortest(vectors) * (1 + 2e-3)


def models_of(method, changes, w, dtype=np.float32):
    """The rule of a method on the models w + changes, in float32 as users run it."""
    with jax.enable_x64(False):
        count = len(changes)
        models = jnp.asarray(w + changes, dtype)
        ids = jnp.arange(count, dtype=jnp.int32)
        sent = Gathered(models, jnp.full(count, 1 / count, dtype), ids, jnp.ones(count, bool))
        return np.asarray(method.combine(sent, jnp.asarray(w, dtype)), np.float64)


def total_distance(v, models):
    return np.linalg.norm(models - v, axis=1).sum()


def least_distance(models):
    """The least sum of distances, by SciPy and at the models themselves."""
    scale = np.abs(models - models[0]).max() or 1.0
    moved = (models - models[0]) / scale
    starts = [moved.mean(0), np.median(moved, axis=0)]
    ends = [
        scipy.optimize.minimize(
            total_distance,
            s,
            moved,
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-12, "maxfev": 8000},
        ).x
        for s in starts
    ]
    return scale * min(total_distance(v, moved) for v in [*ends, *moved])


POINTS = {
    "random": SPREAD[:, :2],
    "duplicates": np.repeat(SPREAD[:4, :2], 2, axis=0),
    "collinear": np.linspace(0.5, 2, 5)[:, None] * SPREAD[:1, :2],
    "three": np.array([[0.0, 0.0], [1.0, 0.1], [-1.0, 0.1]]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scale", "client"),
    [
        ("random", 1.0, None),
        ("duplicates", 1e-3, -1),
        ("collinear", 1e6, None),
        ("three", 1.0, 0),
        ("three", 1e6, -1),
    ],
)
def test_the_geometric_median_is_reached_from_any_start(name, scale, client):
    """The start is far away, or the model of a client that did not move."""
    changes = POINTS[name] * scale
    changes = changes + 5 * scale if client is None else changes - changes[client]
    nu = 1e-6 * scale
    found = models_of(
        fedax.GeometricMedian(iterations=500, nu=nu),
        changes.astype(np.float32),
        np.zeros(2, np.float32),
    )
    least = least_distance(changes)
    assert total_distance(found, changes) <= least * (1 + 1e-3)


def test_one_client_that_did_not_move_does_not_hold_the_median():
    """Four of five agree on 1; the fifth kept the model. Before, three iterations moved it by
    3e-6."""
    changes = np.array([[0.0], [1.0], [1.0], [1.0], [1.0]], np.float32)
    np.testing.assert_allclose(
        models_of(fedax.GeometricMedian(), changes, np.zeros(1, np.float32)), [1.0], atol=0.05
    )


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_rules_at_any_scale(scale):
    changes = (SPREAD * scale).astype(np.float32)
    zero = np.zeros(4, np.float32)
    reference = SPREAD.astype(np.float32).astype(np.float64)
    for method in (
        fedax.Krum(byzantine=1),
        fedax.Krum(selected=3),
        fedax.GeometricMedian(iterations=50, nu=1e-30),
    ):
        found = models_of(method, changes, zero) / scale
        expected = models_of(method, reference, zero)
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(
        models_of(fedax.CoordinateMedian(), changes, zero) / scale,
        np.median(reference, axis=0),
        rtol=1e-5,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "normalize"), [(1e-25, "none"), (1e18, "none"), (1e18, "unit")])
def test_fedaware_steps_along_the_shortest_combination_at_any_scale(scale, normalize):
    """One step of size 1 on bowls around b_k: the update of client k is -b_k, half of it the
    momentum."""
    centres = SPREAD.astype(np.float32) * np.float32(scale)
    with jax.enable_x64(False):
        task = fedax.Task(
            np.zeros(4, np.float32),
            lambda w, x: ((w[None] - x) * (1 / scale) * (w[None] - x)).sum(1) / 2,
            list(centres[:, None]),
        )
        options = {
            "solver": fedax.SGD(scale),
            "schedule": fedax.Schedule(batch_size="full"),
            "observe": [],
        }
        engine = fedax.Simulation(devices=1)
        history = fedax.run(
            fedax.FedAWARE(normalize=normalize), task, rounds=1, engine=engine, **options
        )
    step = np.linalg.norm(np.asarray(history.params, np.float64))
    momenta = centres.astype(np.float64) / 2
    if normalize == "unit":
        momenta = momenta / np.linalg.norm(momenta, axis=1, keepdims=True)
    np.testing.assert_allclose(step, shortest(momenta), rtol=2e-3)
