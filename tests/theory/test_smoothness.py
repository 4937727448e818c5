"""The smoothness behind `fedax.theory.step_size`: closed forms, quadratics and estimates, against
dense Hessians and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import fedax
from fedax.core import Ragged, Task
from fedax.data import FederatedData
from fedax.models import MLP, Softmax
from fedax.tasks import classification
from fedax.tasks.logistic import logistic
from fedax.theory import constants, fedbc, local_gd
from problems import quadratic, random_quadratic, regression

FULL = fedax.Schedule(steps=5, batch_size="full", weights="equal")


def clients_of(rng, sizes, features, classes):
    return [
        {
            "x": rng.normal(size=(n, features)) * rng.uniform(0.3, 3),
            "y": rng.integers(0, classes, size=n),
        }
        for n in sizes
    ]


def top(x):
    """The largest eigenvalue of X'X / n."""
    return np.linalg.eigvalsh(x.T @ x)[-1] / len(x)


def with_ones(x):
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def used(task, *seeds):
    """1 / (4 H gamma): the smoothness from which a step size is made."""
    return 1 / (4 * 5 * fedax.theory.step_size(task, FULL, seeds=seeds or (0,)))


def softmax_curvature(x, weights, bias):
    """The largest eigenvalue of softmax regression's Hessian, in NumPy: the mean of (diag(p) - p
    p') times x x'."""
    logits = x @ weights + bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    parts = [
        np.kron(np.diag(q) - np.outer(q, q), np.outer(row, row))
        for q, row in zip(p, with_ones(x), strict=True)
    ]
    return np.linalg.eigvalsh(np.mean(parts, axis=0))[-1]


def logistic_curvature(x, w):
    p = expit(x @ w)
    return np.linalg.eigvalsh((x.T * (p * (1 - p))) @ x / len(x))[-1]


def examples(task, client):
    return np.asarray(task.train[client]["x"], float)


@pytest.mark.parametrize("classes", [2, 10])
def test_softmax_regression_has_a_closed_form(classes):
    """Two classes have 1/2 too: the Hessian in two logits is p (1 - p) times a matrix of norm 2."""
    rng = np.random.default_rng(classes)
    data = FederatedData.from_arrays(clients_of(rng, [3, 9, 1, 30], 4, classes), classes=classes)
    for model, l2 in ((Softmax(4, classes), 0.0), (MLP((4, classes)), 0.3)):
        task = classification(data, model, l2=l2)
        right = np.array([top(with_ones(examples(task, k))) / 2 + l2 for k in range(4)])
        found = constants.Measured(task)
        np.testing.assert_allclose(found.smoothness, right, rtol=1e-4)
        assert np.all(found.smoothness >= right)
        assert found.source == constants.CLOSED_FORM
    assert used(task, 3) == pytest.approx(right.max(), rel=1e-4)


def test_softmax_with_opposed_clients_reaches_its_closed_form():
    """At a tie of two of ten classes the curvature is that of the closed form, five times that at
    0."""
    x = np.array([[2.0, 0.0]])
    task = classification(
        FederatedData.from_arrays([{"x": x, "y": [0]}, {"x": x, "y": [1]}], classes=10),
        Softmax(2, 10),
    )
    tie = softmax_curvature(x, np.zeros((2, 10)), np.array([50.0, 50.0, *[0.0] * 8]))
    assert tie == pytest.approx(5 * softmax_curvature(x, np.zeros((2, 10)), np.zeros(10)))
    np.testing.assert_allclose(constants.Measured(task).smoothness, tie, rtol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_closed_forms_are_above_the_curvature_anywhere(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, size=3)
    features = int(rng.integers(1, 4))
    classes = int(rng.integers(2, 5))
    softmax = classification(
        FederatedData.from_arrays(clients_of(rng, sizes, features, classes), classes=classes),
        Softmax(features, classes),
    )
    binary = logistic(
        FederatedData.from_arrays(clients_of(rng, sizes, features, 2), classes=2), l2=0.1
    )
    bounds = [constants.Measured(task).smoothness for task in (softmax, binary)]
    for client in range(3):
        x = examples(softmax, client)
        z = examples(binary, client)
        for scale in (0.0, 0.1, 1.0, 10.0, 100.0):
            w = scale * rng.normal(size=(features, classes))
            bias = scale * rng.normal(size=classes)
            assert softmax_curvature(x, w, bias) <= bounds[0][client]
            assert logistic_curvature(z, w[:, 0]) + 0.1 <= bounds[1][client]
        assert logistic_curvature(z, np.zeros(features)) + 0.1 == pytest.approx(
            bounds[1][client], rel=1e-4
        )


def steepest(w):
    """The largest curvature of `bent`'s clients at a point, by hand: the Hessian is diagonal."""
    return max(np.abs(-np.sin(w) * square + 0.12 * w**2).max() for square in (2.5, 0.25))


def test_quadratics_are_exact():
    a, b = random_quadratic(clients=4, dim=3, high=3.0)
    own = np.linalg.eigvalsh(a)[:, -1]
    task = quadratic(a, b, sizes=[1, 2, 5, 3])
    found = constants.Measured(task)
    np.testing.assert_allclose(found.smoothness, own, rtol=1e-4)
    assert np.all(found.smoothness >= own)
    assert found.source == constants.EXACT
    assert constants.Measured(regression()).source == constants.EXACT
    for schedule, most in (
        (fedax.Schedule(steps=4), 4),
        (fedax.Schedule(cohort=2, times=(1, 4, 6), batch_size="full"), 3),
        (fedax.Schedule(epochs=(1, 3), batch_size=2), 9),
        (fedax.Schedule(epochs=2, batch_size=(3, "all")), 4),
    ):
        step_size = fedax.theory.step_size(task, schedule)
        right = local_gd.step_size(smoothness=float(own.max()), interval=most)
        assert step_size == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "is_one"),
    [
        (lambda w, x: (w - x) ** 2, True),
        (lambda w, x: w * x + w**2, True),
        (lambda w, x: jnp.abs(w - x), False),
        (lambda w, x: jnp.abs(w - x) + w**2, False),
        (lambda w, x: jnp.where(jnp.abs(w - x) < 1, (w - x) ** 2, 2 * jnp.abs(w - x) - 1), False),
        (lambda w, x: jax.nn.relu(w - x) ** 2, False),
        (lambda w, x: (w - x) ** 4, False),
        (lambda w, x: jax.nn.softplus(w * x), False),
        (lambda w, x: jnp.log(jnp.cosh(w - x)), False),
    ],
)
def test_what_counts_as_quadratic(loss, is_one):
    """Losses with kinks or flat pieces have the same Hessian at many points, and are none."""
    assert constants.is_quadratic(fedax.Task(3.0, loss, [[1.0, 2.0], [5.0]])) == is_one


def log_cosh(scale):
    def loss(w, examples):
        far = jnp.abs(examples["x"] @ w - examples["y"])
        return scale * (far + jnp.log1p(jnp.exp(-2 * far)) - jnp.log(2.0))

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("start", [20.0, 1e3, -1e5])
def test_a_start_far_out_hides_no_curvature(start):
    """The curvature at the start underflows. At the bottom, which fits all examples, it is the
    largest there is."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=2)
    inputs = rng.normal(size=(3, 6, 2))
    clients = [{"x": x, "y": x @ truth} for x in inputs]
    task = fedax.Task(np.full(2, start), log_cosh(9.0), clients)
    right = max(9 * top(x) for x in inputs)
    assert constants.Measured(task).source == constants.ESTIMATE
    assert right <= used(task) <= 20 * right


@pytest.mark.slow
def test_float32_far_out():
    with jax.enable_x64(False):
        loss = lambda w, x: 9 * jnp.logaddexp(w - x, x - w)  # noqa: E731
        for start in (0.0, 30.0, 1e4):
            task = fedax.Task(
                np.float32(start), loss, [np.zeros(2, np.float32), np.zeros(1, np.float32)]
            )
            assert 9 <= used(task) <= 9 * 10


def random_start(key):
    return 3 * jax.random.normal(key, (4,))


def bent(w, x):
    """Not convex, with another curvature at every start."""
    return (jnp.sin(w).sum() + 1) * x**2 + 0.01 * (w**4).sum()


@pytest.fixture(scope="module")
def bent_task():
    return fedax.Task(random_start, bent, [[1.0, 2.0], [0.5]])


@pytest.mark.slow
def test_estimates_are_of_the_runs_own_starts(bent_task):
    """The curvature at the very parameters of a seed does not exceed its estimate; several seeds
    have the largest."""
    alone = [used(bent_task, seed) for seed in (0, 5)]
    assert alone[0] != alone[1]
    for seed, smooth in zip((0, 5), alone, strict=True):
        start = fedax.run(fedax.FedAvg(), bent_task, rounds=0, seed=seed).params
        assert steepest(np.asarray(start)) * constants.SAFETY <= smooth * (1 + 0.05)
    assert used(bent_task) == alone[0]
    assert used(bent_task, 0, 5) == max(alone)


def test_tasks_without_curvature_are_refused():
    linear = fedax.Task(np.float64(0.0), lambda w, x: w * x["x"], [{"x": [1.0]}, {"x": [2.0]}])
    with pytest.raises(fedax.InvalidInput, match="client 0 without curvature"):
        fedax.theory.step_size(linear, FULL)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [None, fedax.Eager()], ids=["simulation", "eager"])
def test_multipliers_stay_within_the_bounds_of_the_analysis(engine):
    """Dual steps large enough to reach both ends; multipliers begin at the lower one."""
    rng = np.random.default_rng(2)
    data = FederatedData.from_arrays(clients_of(rng, [4, 9, 20], 3, 4), classes=4)
    task = classification(data, Softmax(3, 4), l2=0.01)
    right = np.array([top(with_ones(examples(task, k))) / 2 + 0.01 for k in range(3)])
    bounds = fedbc.multiplier_bounds(constants.Measured(task).smoothness)
    np.testing.assert_allclose(bounds.low, 1 + right, rtol=1e-4)
    np.testing.assert_allclose(bounds.high, (1 + right) ** 2 / right, rtol=1e-4)
    ends = {"lam": bounds.low, "lam_min": bounds.low, "lam_max": bounds.high}
    method = fedax.FedBC(dual_lr=1e6, learn_gamma=False, **ends)
    schedule = fedax.Schedule(cohort=2, steps=2)
    history = fedax.run(method, task, rounds=1, schedule=schedule, engine=engine)
    last = np.asarray(history.state.clients.all().dual.lam)
    low, high = (np.asarray(values, last.dtype) for values in (bounds.low, bounds.high))
    assert sorted((last == high).tolist()) == [False, True, True]
    assert np.all((last == high) | (last == low))


def test_a_loss_may_state_its_smoothness():
    class Stated:
        def __call__(self, params, examples, key):
            return jnp.log(jnp.cosh(examples["x"] - params))

        def smoothness(self, examples):
            return float(len(examples["x"]))

    train = Ragged.of([{"x": np.zeros(2)}, {"x": np.zeros(5)}])
    task = Task(lambda key: jnp.zeros(()), Stated(), FederatedData.from_arrays(train), l2=0.5)
    np.testing.assert_allclose(constants.Measured(task).smoothness, [2.5, 5.5], rtol=1e-4)
