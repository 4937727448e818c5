"""Observers of the constants in theorems, against NumPy on quadratics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.numerics.lanczos import extremes
from fedax.observe import (
    Curvature,
    Inexactness,
    Optimum,
)
from fedax.theory import feddane
from problems import quadratic, random_quadratic

A, B = random_quadratic(clients=4, dim=3, high=3.0)
# of both signs; no convex combination of gradients vanishes
A = A - np.diag([1.0, 0.0, 0.0])
B = B + 20
TASK = quadratic(A, B, sizes=[2, 5, 7, 1])
SHARE = np.array([2, 5, 7, 1]) / 15
ENGINES = {"chunked": lambda: fedax.Simulation(chunk=3, devices=2), "eager": fedax.Eager}
MU = 4.0
RATE = 0.05
STEPS = 6


def gradients(x):
    return np.einsum("kij,kj->ki", A, x - B)


@pytest.fixture(scope="module", params=["chunked", pytest.param("eager", marks=pytest.mark.slow)])
def watched(request):
    observers = [Curvature(), Inexactness()]
    schedule = fedax.Schedule(cohort=2, steps=STEPS, batch_size="full")
    options = {"solver": fedax.SGD(RATE), "schedule": schedule, "rounds": 1, "observe": observers}
    return fedax.run(fedax.FedDANE(mu=MU), TASK, engine=ENGINES[request.param](), **options)


def models(run):
    return np.zeros(3), np.asarray(run.params)


@pytest.mark.slow
def test_the_curvature_of_indefinite_clients(watched):
    ends = np.linalg.eigvalsh(A)
    for t in range(2):
        np.testing.assert_allclose(watched.metrics["smoothness"][t], np.abs(ends).max(1), rtol=1e-8)
        np.testing.assert_allclose(watched.metrics["eigenvalue"][t], ends[:, 0], rtol=1e-8)
        assert watched.metrics["eigenvalue_lowest"][t] == pytest.approx(ends.min())
        assert ends.min() < 0
        assert watched.metrics["smoothness_largest"][t] == pytest.approx(np.abs(ends).max())


@pytest.mark.slow
def test_inexactness_is_that_of_the_definition(watched):
    """Full-gradient steps in NumPy, and the minimiser by a linear system."""
    for t, w in enumerate(models(watched)):
        g = SHARE @ gradients(w)
        own = gradients(w)
        for k in range(4):
            exact = w - np.linalg.solve(A[k] + MU * np.eye(3), g)
            solution = w
            for _ in range(STEPS):
                step = A[k] @ (solution - B[k]) + g - own[k] + MU * (solution - w)
                solution = solution - RATE * step
            truth = feddane.inexactness(solution, exact, w)
            assert watched.metrics["inexactness"][t][k] == pytest.approx(truth, rel=1e-4)
        assert watched.metrics["inexactness_largest"][t] == watched.metrics["inexactness"][t].max()
        assert watched.metrics["proximal"][t] == MU


@pytest.mark.slow
def test_the_solution_of_another_problem_is_inexact():
    """The released correction solves what the paper does not have, however exactly."""
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(6, 2)), "y": rng.integers(0, 3, size=6)} for _ in range(3)]

    def loss(params, examples):
        logits = examples["x"] @ params["a"].T + params["b"][None]
        return (
            jax.nn.logsumexp(logits, axis=1)
            - jnp.take_along_axis(logits, examples["y"][:, None], 1)[:, 0]
        )

    task = fedax.Task({"a": jnp.zeros((3, 2)), "b": jnp.zeros(3)}, loss, data)
    for correction, exact in (("exact", True), ("as_released", False)):
        method = fedax.FedDANE(mu=1.0, correction=correction)
        run = fedax.run(method, task, solver=fedax.Exact(), rounds=0, observe=[Inexactness()])
        assert (run.metrics["inexactness_largest"][0] < 1e-4) == exact


@pytest.mark.slow
def test_methods_without_such_a_problem_have_none():
    for method in (fedax.FedAvg(), fedax.FedBC()):
        run = fedax.run(method, TASK, rounds=0, observe=[Inexactness()])
        assert np.isnan(run.metrics["inexactness_largest"][0])


@pytest.mark.slow
def test_the_optimum():
    convex = A + np.diag([1.0, 0.0, 0.0])
    task = quadratic(convex, B, sizes=[2, 5, 7, 1])
    p = np.full(4, 0.25)
    best = np.linalg.solve(
        np.einsum("k,kij->ij", p, convex), np.einsum("k,kij,kj->i", p, convex, B)
    )
    options = {
        "schedule": fedax.Schedule(steps=2, batch_size="full", weights="equal"),
        "solver": fedax.SGD(0.1),
    }
    run = fedax.run(
        fedax.LocalGD(), task, rounds=1, observe=[Optimum(jnp.asarray(best))], **options
    )
    for t, w in enumerate((np.zeros(3), np.asarray(run.params))):
        off = w - best
        assert run.metrics["distance"][t] == pytest.approx(np.linalg.norm(off))
        assert run.metrics["optimum_gap"][t] == pytest.approx(
            off @ np.einsum("k,kij->ij", p, convex) @ off / 2
        )
        squares = np.sum(np.einsum("kij,kj->ki", convex, best - B) ** 2, axis=1)
        assert run.metrics["optimum_variance"][t] == pytest.approx(squares.mean())


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 40])
def test_the_ends_of_spectra(dim):
    """Steps as many as dimensions, fewer, and more; also where the iteration ends early."""
    rng = np.random.default_rng(dim)
    q = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    for spectrum in (rng.normal(size=dim), np.where(np.arange(dim) % 2, -0.5, 2.0), np.zeros(dim)):
        matrix = jnp.asarray((q * spectrum) @ q.T)
        low, high = extremes(lambda v: matrix @ v, jnp.asarray(rng.normal(size=dim)), 50)  # noqa: B023
        np.testing.assert_allclose([low, high], [spectrum.min(), spectrum.max()], atol=1e-8)
    wide = jnp.asarray(np.linspace(-1, 3, dim))
    low, high = extremes(lambda v: wide * v, jnp.ones(dim), 20)
    np.testing.assert_allclose([low, high], [wide.min(), wide.max()], atol=0.03)


def test_a_minimiser_may_be_a_list():
    point = [0.5, -1.0, 2.0]
    listed, given = (
        fedax.run(fedax.FedAvg(), TASK, rounds=0, observe=[Optimum(form)]).metrics
        for form in (point, jnp.asarray(point))
    )
    assert {"distance", "optimum_gap", "optimum_variance"} <= set(listed)
    for name, values in given.items():
        np.testing.assert_array_equal(listed[name], values)
    for wrong in ({"w": jnp.ones(3)}, "middle", [[1.0], [1.0, 2.0]]):
        with pytest.raises(InvalidInput, match=r"Optimum\(point=\.\.\.\): "):
            Optimum(wrong)
