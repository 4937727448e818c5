"""Estimated constants against known ones: quadratics, logistic regression in NumPy, sums over all
minibatches."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from convex import newton, value
from fedax.core import InvalidInput, Task
from fedax.data import FederatedData
from fedax.theory import estimate, feddane
from random_problems import quadratics


def quadratic(w, examples, key):
    off = w[None] - examples["b"]
    return jnp.einsum("ni,nij,nj->n", off, examples["a"], off) / 2


def task_of(q, l2=0.0):
    """Each client has one example, its quadratic; client 0 has it three times."""
    times = [3, *[1] * (len(q.p) - 1)]
    clients = [
        {"a": np.repeat(a[None], n, 0), "b": np.repeat(b[None], n, 0)}
        for a, b, n in zip(q.a, q.b, times, strict=True)
    ]
    return Task(
        lambda key: jnp.zeros(q.b.shape[1]), quadratic, FederatedData.from_arrays(clients), l2=l2
    )


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.7], ids=["convex", "indefinite"])
@pytest.mark.parametrize("dim", [1, 2, 30])
def test_curvature_of_quadratics(dim, shift, monkeypatch):
    monkeypatch.setattr(estimate, "PIECE", 2)
    for seed in range(1 if dim > 2 else 2):
        q = quadratics(np.random.default_rng(seed), dim=dim)
        q = q._replace(a=q.a - shift * np.eye(dim))
        losses = estimate.Losses(task_of(q, l2=0.1), weights="equal")
        for client in (None, 0, 3):
            matrix = (q.mean if client is None else q.a[client]) + 0.1 * np.eye(dim)
            eigenvalues = np.linalg.eigvalsh(matrix)
            most = np.abs(eigenvalues).max()
            assert estimate.smoothness(losses, client=client) == pytest.approx(most, rel=1e-5)
            assert estimate.lowest_eigenvalue(losses, client=client) == pytest.approx(
                eigenvalues[0], abs=1e-3 * most
            )


@pytest.mark.slow
def test_losses_gradients_and_weights(monkeypatch):
    rng = np.random.default_rng(0)
    q = quadratics(rng)
    w = rng.normal(size=4)
    shares = np.array([3, 1, 1, 1, 1]) / 7
    for weights, p in (("shares", shares), ("equal", q.p)):
        for piece in (1, 2):
            monkeypatch.setattr(estimate, "PIECE", piece)
            losses = estimate.Losses(task_of(q, l2=0.2), weights=weights)
            np.testing.assert_allclose(losses.shares, p)
            np.testing.assert_allclose(losses.gradients(w), q.gradients(w) + 0.2 * w, rtol=1e-10)
            np.testing.assert_allclose(losses.gradient(w), p @ q.gradients(w) + 0.2 * w, rtol=1e-10)
            assert losses.value(w) == pytest.approx(q._replace(p=p).value(w) + 0.1 * w @ w)


@pytest.mark.slow
def test_optimum_of_quadratics():
    for seed in range(2):
        q = quadratics(np.random.default_rng(seed), lowest=0.01)
        found = estimate.optimum(estimate.Losses(task_of(q), weights="equal"))
        np.testing.assert_allclose(found.w, q.optimum, atol=1e-7)
        assert found.value == pytest.approx(q.value(q.optimum))
        assert found.gradient < 1e-9


def test_no_optimum_where_the_curvature_is_negative():
    q = quadratics(np.random.default_rng(0))
    losses = estimate.Losses(task_of(q._replace(a=q.a - 5 * np.eye(4))))
    with pytest.raises(InvalidInput, match="curvature"):
        estimate.optimum(losses)


def logistic_task(rng):
    a = rng.normal(size=(30, 3))
    y = (a @ rng.normal(size=3) + rng.normal(size=30) > 0).astype(float)

    def loss(w, examples, key):
        return jnp.logaddexp(0.0, -(2 * examples["y"] - 1) * (examples["x"] @ w))

    parts = [slice(0, 5), slice(5, 12), slice(12, 30)]
    return (
        Task(
            lambda key: jnp.zeros(3),
            loss,
            FederatedData.from_arrays([{"x": a[i], "y": y[i]} for i in parts]),
            l2=0.05,
        ),
        a,
        2 * y - 1,
    )


@pytest.mark.slow
def test_optimum_of_logistic_regression():
    task, a, signs = logistic_task(np.random.default_rng(0))
    found = estimate.optimum(estimate.Losses(task))
    ours = newton(a, signs, 0.05)
    np.testing.assert_allclose(found.w, ours, atol=1e-8)
    assert found.value == pytest.approx(value(ours, a, signs, 0.05))


def test_local_variance_is_that_of_all_minibatches():
    task, a, signs = logistic_task(np.random.default_rng(0))
    losses = estimate.Losses(task)
    w = np.array([0.3, -0.2, 0.5])
    each = np.array(
        [-s * x / (1 + np.exp(s * x @ w)) for x, s in zip(a[5:12], signs[5:12], strict=True)]
    )
    for b in (1, 2, 3, 7):
        batches = [each[list(rows)].mean(0) for rows in itertools.combinations(range(7), b)]
        truth = np.mean([np.sum((g - each.mean(0)) ** 2) for g in batches])
        found = estimate.local_variance(losses, w, 1, batch_size=b)
        assert found == pytest.approx(truth, abs=1e-14)
    assert estimate.local_variance(losses, w, 1, batch_size=8) == 0


@pytest.mark.slow
def test_sampled_variance_is_right_in_the_mean():
    task, _, _ = logistic_task(np.random.default_rng(0))
    losses = estimate.Losses(task)
    w = np.array([0.3, -0.2, 0.5])
    found = [estimate.local_variance(losses, w, 2, samples=9, seed=seed) for seed in range(200)]
    assert np.mean(found) == pytest.approx(estimate.local_variance(losses, w, 2), rel=0.03)


@pytest.mark.slow
def test_dissimilarity_of_a_task_is_the_observers():
    task = fedax.task("synthetic", alpha=1.0, beta=1.0, clients=5)
    losses = estimate.Losses(task)
    run = fedax.run(fedax.FedAvg(), task, rounds=0, observe=[fedax.observe.Dissimilarity()])
    found = feddane.dissimilarity(losses.gradients(losses.layout.ravel(run.params)), losses.shares)
    assert found == pytest.approx(float(run.metrics["dissimilarity"][0]))


@pytest.mark.slow
def test_single_precision():
    q = quadratics(np.random.default_rng(0), dim=30)
    with jax.enable_x64(False):
        losses = estimate.Losses(task_of(q), weights="equal")
        assert losses.start.dtype == jnp.float32
        assert estimate.smoothness(losses) == pytest.approx(
            np.linalg.eigvalsh(q.mean)[-1], rel=1e-4
        )
        lowest = np.linalg.eigvalsh(q.mean)[0]
        assert estimate.lowest_eigenvalue(losses) == pytest.approx(
            lowest, abs=1e-2 * estimate.smoothness(losses)
        )
