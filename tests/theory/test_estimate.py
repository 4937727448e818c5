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
from fedax.theory import estimate, feddane, local_gd
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
def test_curvature_of_quadratics(dim, shift):
    for seed in range(1 if dim > 2 else 2):
        q = quadratics(np.random.default_rng(seed), dim=dim)
        q = q._replace(a=q.a - shift * np.eye(dim))
        losses = estimate.Losses(task_of(q, l2=0.1), weights="equal", piece=2)
        for client in (None, 0, 3):
            matrix = (q.mean if client is None else q.a[client]) + 0.1 * np.eye(dim)
            eigenvalues = np.linalg.eigvalsh(matrix)
            most = np.abs(eigenvalues).max()
            assert estimate.smoothness(losses, client=client) == pytest.approx(most, rel=1e-5)
            assert estimate.lowest_eigenvalue(losses, client=client) == pytest.approx(
                eigenvalues[0], abs=1e-3 * most
            )


@pytest.mark.slow
def test_losses_gradients_and_weights():
    rng = np.random.default_rng(0)
    q, w = quadratics(rng), rng.normal(size=4)
    shares = np.array([3, 1, 1, 1, 1]) / 7
    for weights, p in (("shares", shares), ("equal", q.p)):
        for piece in (1, 2):
            losses = estimate.Losses(task_of(q, l2=0.2), weights=weights, piece=piece)
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
    with pytest.raises(
        InvalidInput,
        match=r"optimum\(losses=...\): got negative curvature; "
        r"allowed: convex losses",
    ):
        estimate.optimum(losses)


KNOWN = {
    "a5a": (1.574027, 0.32362128215943686, 1.62748, 0.00542725),
    "mushrooms": (2.586214, 0.014485866128334239, 3.88629, 0.000185239),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a5a", "mushrooms"])
def test_constants_of_local_gds_problems(name, data_folder):
    """As computed elsewhere for 20 blocks of examples: L without l2, f*, max L_m, sigma^2 at the
    pooled optimum."""
    if not (data_folder / "libsvm").is_dir():
        pytest.skip("no LIBSVM files")
    task = fedax.task(name, clients=20, folder=str(data_folder))
    losses = estimate.Losses(task)
    smooth, least, worst, variance = KNOWN[name]
    assert estimate.smoothness(losses) - task.l2 == pytest.approx(smooth, rel=1e-5)
    assert max(estimate.smoothness(losses, client=k) for k in range(20)) == pytest.approx(
        worst, rel=1e-5
    )
    found = estimate.optimum(losses)
    assert found.value == pytest.approx(least, abs=1e-11)
    assert local_gd.variance(losses.gradients(found.w)) == pytest.approx(variance, rel=1e-5)


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
    found, ours = estimate.optimum(estimate.Losses(task)), newton(a, signs, 0.05)
    np.testing.assert_allclose(found.w, ours, atol=1e-8)
    assert found.value == pytest.approx(value(ours, a, signs, 0.05))


def test_local_variance_is_that_of_all_minibatches():
    task, a, signs = logistic_task(np.random.default_rng(0))
    losses, w = estimate.Losses(task), np.array([0.3, -0.2, 0.5])
    each = np.array(
        [-s * x / (1 + np.exp(s * x @ w)) for x, s in zip(a[5:12], signs[5:12], strict=True)]
    )
    for b in (1, 2, 3, 7):
        batches = [each[list(rows)].mean(0) for rows in itertools.combinations(range(7), b)]
        truth = np.mean([np.sum((g - each.mean(0)) ** 2) for g in batches])
        found = estimate.local_variance(losses, w, 1, batch_size=b)
        assert found.mean == pytest.approx(truth, abs=1e-14)
        assert found.low == found.mean == found.high


@pytest.mark.slow
def test_sampled_variance_covers_the_truth():
    """19 of 20 intervals should; 200 draws have a standard error of 1.5 %, and few examples a
    skewed mean."""
    task, _, _ = logistic_task(np.random.default_rng(0))
    losses, w = estimate.Losses(task), np.array([0.3, -0.2, 0.5])
    truth = estimate.local_variance(losses, w, 2).mean
    found = [estimate.local_variance(losses, w, 2, samples=9, seed=seed) for seed in range(200)]
    assert np.mean([low <= truth <= high for _, low, high in found]) > 0.85
    assert np.mean([mean for mean, _, _ in found]) == pytest.approx(truth, rel=0.03)


def test_global_variance():
    q = quadratics(np.random.default_rng(2), lowest=0.05)
    losses = estimate.Losses(task_of(q), weights="equal")
    points = [np.zeros(4), np.ones(4), q.optimum]
    spread = [np.mean(np.sum((q.gradients(x) - q.gradient(x)) ** 2, axis=1)) for x in points]
    assert estimate.global_variance(losses, points) == pytest.approx(max(spread))


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: estimate.Losses(t, weights="sizes"),
            r"Losses\(weights=\.\.\.\): got 'sizes'; allowed: one of equal, shares",
        ),
        (
            lambda t: estimate.Losses(t, piece=0),
            r"Losses\(piece=\.\.\.\): got 0; allowed: whole "
            r"numbers >= 1",
        ),
        (
            lambda t: estimate.Losses(t).gradient(np.zeros(3)),
            r"w: got shape \(3,\); allowed: a "
            r"flat vector of 4 numbers",
        ),
        (
            lambda t: estimate.local_variance(estimate.Losses(t), np.zeros(4), 1, batch_size=2),
            r"local_variance\(batch_size=\.\.\.\): got 2; allowed: whole numbers in \[1, 1\]",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InvalidInput, match=message):
        call(task_of(quadratics(np.random.default_rng(0))))
