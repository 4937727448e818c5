"""Observers of the constants in theorems, against NumPy on quadratics: curvature, exactness,
surrogate weights, local work."""

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
    LocalWork,
    Optimum,
    SolveErrors,
    SurrogateDiversity,
)
from fedax.theory import fedaware, fedbc, feddane
from problems import quadratic, random_quadratic

A, B = random_quadratic(clients=4, dim=3, high=3.0)
# of both signs; no convex combination of gradients vanishes
A, B = A - np.diag([1.0, 0.0, 0.0]), B + 20
TASK = quadratic(A, B, sizes=[2, 5, 7, 1])
SHARE = np.array([2, 5, 7, 1]) / 15
ENGINES = {"chunked": lambda: fedax.Simulation("chunked", chunk=3, devices=2), "eager": fedax.Eager}
MU, RATE, STEPS = 4.0, 0.05, 6


def gradients(x):
    return np.einsum("kij,kj->ki", A, x - B)


@pytest.fixture(scope="module", params=["chunked", pytest.param("eager", marks=pytest.mark.slow)])
def watched(request):
    observers = [Curvature(), Inexactness(), SurrogateDiversity(), LocalWork()]
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
        g, own = SHARE @ gradients(w), gradients(w)
        for k in range(4):
            exact, solution = w - np.linalg.solve(A[k] + MU * np.eye(3), g), w
            for _ in range(STEPS):
                step = A[k] @ (solution - B[k]) + g - own[k] + MU * (solution - w)
                solution = solution - RATE * step
            truth = feddane.inexactness(solution, exact, w)
            assert watched.metrics["inexactness"][t][k] == pytest.approx(truth, rel=1e-4)
        assert watched.metrics["inexactness_largest"][t] == watched.metrics["inexactness"][t].max()
        assert watched.metrics["proximal"][t] == MU


@pytest.mark.slow
def test_surrogate_weights_are_the_best(watched):
    for t, w in enumerate(models(watched)):
        found, weights = gradients(w), watched.metrics["surrogate_weight"][t]
        assert watched.metrics["diversity"][t] == pytest.approx(fedaware.diversity(found, SHARE))
        most = fedaware.diversity(found, SHARE, np.asarray(weights) / weights.sum())
        assert watched.metrics["surrogate_diversity"][t] == pytest.approx(most, rel=1e-6)
        others = np.random.default_rng(0).dirichlet(np.ones(4), size=200)
        assert max(fedaware.diversity(found, SHARE, each) for each in others) <= most * (1 + 1e-9)
        assert watched.metrics["surrogate_distance"][t] == pytest.approx(
            fedaware.divergence(weights, SHARE).gap, rel=1e-6
        )
        assert watched.metrics["surrogate_gap"][t] <= 1e-12 * np.sum(found**2)


@pytest.mark.slow
def test_with_a_server_nothing_is_mixed_and_full_batches_have_no_noise(watched):
    last = {name: series[-1] for name, series in watched.metrics.items()}
    assert (last["local_steps"], last["local_rate"], last["local_momentum"]) == (STEPS, RATE, 0)
    assert last["mixing"] == 0
    assert last["batch_variance"] < 1e-25
    assert last["gradient_largest"] == pytest.approx(
        np.linalg.norm(gradients(np.asarray(watched.params)), axis=1).max()
    )


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
@pytest.mark.parametrize("start", ["own", "global"])
def test_the_errors_of_fedbcs_solutions(start):
    """Full-gradient steps in NumPy from each client's own model, which the observer of round 1
    continues as round 1 does."""
    lam = np.array([4.0, 5.0, 6.0, 4.5])
    method = fedax.FedBC(dual_lr=0.01, lam=lam, gamma=0.5, start=start)
    schedule = fedax.Schedule(steps=STEPS, batch_size="full")
    options = {
        "solver": fedax.SGD(RATE),
        "schedule": schedule,
        "observe": [SolveErrors(), fedax.observe.Constraints()],
    }
    run = fedax.run(method, TASK, rounds=1, **options)
    z, own = np.zeros(3), np.zeros((4, 3))
    for t in range(2):
        lam = run.metrics["multiplier"][t]
        x = own if start == "own" else np.tile(z, (4, 1))
        for _ in range(STEPS):
            x = x - RATE * (gradients_at(x) + 2 * lam[:, None] * (x - z))
        errors = np.sum((gradients_at(x) + 2 * lam[:, None] * (x - z)) ** 2, axis=1)
        np.testing.assert_allclose(run.metrics["solve_error"][t], errors, rtol=1e-6, atol=1e-18)
        apart = max(np.sum((a - b) ** 2) for a in x for b in x)
        assert run.metrics["solve_apart"][t] == pytest.approx(apart)
        delta = fedbc.heterogeneity(gradients(z), low=float(lam.min()), high=float(lam.max()))
        assert run.metrics["solve_heterogeneity"][t] == pytest.approx(delta)
        ends, at = (
            (float(lam.min()), float(lam.max())),
            [[A[k] @ (x[j] - B[k]) for j in range(4)] for k in range(4)],
        )
        others = [(k, j) for k in range(4) for j in range(4) if k != j]
        largest = max(
            np.linalg.norm(a * at[k][j] - b * at[j][j])
            for k, j in others
            for a in ends
            for b in ends
        )
        assert run.metrics["solve_heterogeneity_largest"][t] == pytest.approx(largest)
        steep = max(
            np.linalg.norm(A[k] @ (x[k] - x[j])) / np.linalg.norm(x[k] - x[j]) for k, j in others
        )
        assert run.metrics["solve_smoothness"][t] == pytest.approx(steep)
        z, own = np.asarray(run.params), x


def gradients_at(x):
    return np.einsum("kij,kj->ki", A, x - B)


@pytest.mark.slow
def test_methods_without_such_a_problem_have_none():
    run = fedax.run(fedax.FedAvg(), TASK, rounds=0, observe=[Inexactness(), SolveErrors()])
    names = [
        "inexactness_largest",
        "solve_error",
        "solve_error_largest",
        "solve_apart",
        "solve_heterogeneity",
    ]
    assert all(np.isnan(run.metrics[name][0]).all() for name in names)
    meta = fedax.run(fedax.PerFedBC(), TASK, rounds=0, observe=[SolveErrors()])
    assert all(np.isnan(meta.metrics[name][0]).all() for name in names[1:])
    of_dane = fedax.run(fedax.FedBC(), TASK, rounds=0, observe=[Inexactness()])
    assert np.isnan(of_dane.metrics["inexactness_largest"][0])


@pytest.mark.slow
def test_the_constants_of_a_ring():
    """Minibatches of one of two examples are as far from their mean as it is from them."""

    def loss(w, x):
        return ((w[None] - x) ** 2).sum(1) / 2

    task = fedax.Task(np.zeros(2), loss, [np.array([[k, 0.0], [k, 2.0]]) for k in range(5)])
    options = {
        "solver": fedax.SGD(0.1, momentum=0.5),
        "schedule": fedax.Schedule(epochs=2, batch_size=1),
        "rounds": 1,
    }
    run = fedax.run(fedax.DFedAvgM(), task, observe=[LocalWork()], **options)
    last = {name: series[-1] for name, series in run.metrics.items()}
    assert last["batch_variance"] == pytest.approx(1.0)
    assert last["mixing"] == pytest.approx(fedax.Graph.ring(5).lam)
    assert last["graph_period"] == 1
    assert (last["local_steps"], last["local_momentum"]) == (4, 0.5)
    nodes = np.asarray(run.state.all() if not hasattr(run.state, "x") else run.state.x)
    steepest = np.linalg.norm(nodes - np.array([[k, 1.0] for k in range(5)]), axis=1).max()
    assert last["gradient_largest"] == pytest.approx(steepest)


@pytest.mark.slow
def test_a_graph_that_changes_says_its_period():
    rings = fedax.Graph.sequence(
        [fedax.Graph.ring(4), fedax.Graph.complete(4), fedax.Graph.ring(4)]
    )
    run = fedax.run(fedax.DFedAvgM(graph=rings), TASK, rounds=0, observe=[LocalWork()])
    assert run.metrics["graph_period"][0] == 3
    coded = fedax.QuantizedDFedAvgM(step=0.1, code=fedax.codecs.TopK(0.5))
    run = fedax.run(coded, TASK, rounds=0, observe=[LocalWork()])
    assert np.isnan(run.metrics["rounding_square"][0])


@pytest.mark.slow
def test_the_optimum():
    convex = A + np.diag([1.0, 0.0, 0.0])
    task, p = quadratic(convex, B, sizes=[2, 5, 7, 1]), np.full(4, 0.25)
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
