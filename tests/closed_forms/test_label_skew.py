"""FedLC and FedNTD on softmax regression against NumPy: clients of unequal sizes, of which some lack
classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from marks import slow
from problems import SIZES
from transcription import L2, LR, ROUNDS, SCHEDULE, SEED, P, World

CLASSES = 4
START = np.random.default_rng(5).normal(size=(3, CLASSES)) / 2
ENGINES = [fedax.Simulation(devices=1), fedax.Simulation(devices=2), fedax.Eager()]


def cross_entropy(w, examples):
    logs = jax.nn.log_softmax(examples["x"] @ w)
    return -jnp.take_along_axis(logs, examples["y"][:, None], 1)[:, 0]


def predict(w, examples):
    return jax.nn.softmax(examples["x"] @ w)


def classes(start=START):
    """The task from a starting model on, in its type, and the clients' arrays; client k has the
    classes from `k % 3` on."""
    rng = np.random.default_rng(2)
    data = [
        {
            "x": (rng.normal(size=(n, 3)) + k / 2).astype(start.dtype),
            "y": rng.integers(k % 3, CLASSES, size=n).astype(np.int32),
        }
        for k, n in enumerate(SIZES)
    ]
    return fedax.Task(start, cross_entropy, data, predictor=predict, l2=L2), data


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def train(data, slope):
    """FedAvg of local SGD with `slope(k, w, global w, x, y)` as the gradient."""
    w = START
    for cohort in World().cohorts():
        models = []
        for k in cohort:
            v = w
            for _ in range(2):
                for begin in range(0, SIZES[k], 4):
                    x, y = (data[k][name][begin : begin + 4] for name in "xy")
                    v = v - LR * (slope(k, v, w, x, y) + L2 * v)
            models.append(v)
        w = np.average(models, axis=0, weights=P[cohort])
    return w


def run(method, task, engine=ENGINES[0], **options):
    options = {"solver": fedax.SGD(LR), "schedule": SCHEDULE, "rounds": ROUNDS} | options
    return fedax.run(method, task, seed=SEED, engine=engine, **options)


@pytest.mark.parametrize(
    ("tau", "form", "engine"),
    [
        (0.5, "as_written", ENGINES[0]),
        (2.0, "fl_bench", ENGINES[0]),
        slow(2.0, "as_written", ENGINES[1]),
        slow(0.0, "fl_bench", ENGINES[2]),
    ],
)
def test_fedlc(tau, form, engine):
    """As written the true class is not in the sum, and z_y has the slope -1."""
    task, data = classes()
    counts = [np.bincount(client["y"], minlength=CLASSES) for client in data]
    assert any((count == 0).any() for count in counts)

    def slope(k, v, w, x, y):
        margins = tau * np.maximum(counts[k], 1) ** -0.25
        z = x @ v - np.where(counts[k] > 0, margins, np.inf)
        true = np.eye(CLASSES)[y]
        summed = np.where(true, -np.inf, z) if form == "as_written" else z
        return x.T @ (softmax(summed) - true) / len(y)

    found = run(fedax.FedLC(tau=tau, form=form), task, engine).params
    np.testing.assert_allclose(found, train(data, slope), rtol=0, atol=1e-12)


@pytest.fixture
def float32():
    with jax.enable_x64(False):
        yield


@pytest.mark.usefixtures("float32")
def test_classes_that_a_client_lacks_do_not_move():
    """A column of the model belongs to one class."""
    start = START.astype(np.float32)
    data = [{"x": np.ones((5, 3), np.float32), "y": np.array([0, 0, 2, 2, 2], np.int32)}]
    task = fedax.Task(start, cross_entropy, data, predictor=predict)
    schedule = fedax.Schedule(epochs=2, batch_size=2)
    w = run(fedax.FedLC(), task, schedule=schedule).params
    np.testing.assert_allclose(w[:, [1, 3]], start[:, [1, 3]], rtol=1e-6)  # the mean rounds
    assert (np.abs(w - start)[:, [0, 2]] > 1e-3).all()


@pytest.mark.usefixtures("float32")
@pytest.mark.slow
def test_a_client_with_one_class_does_not_train_as_written():
    start = START.astype(np.float32)
    data = [{"x": np.ones((5, 3), np.float32), "y": np.full(5, 2, np.int32)}]
    task = fedax.Task(start, cross_entropy, data, predictor=predict)
    schedule = fedax.Schedule(epochs=2, batch_size=2)
    history = run(fedax.FedLC(), task, schedule=schedule)
    np.testing.assert_array_equal(history.params, start)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beta", "tau", "engine"),
    [(1.0, 1.0, ENGINES[0]), (0.3, 2.0, ENGINES[1]), (0.3, 2.0, ENGINES[2])],
)
def test_fedntd(beta, tau, engine):
    """Logits of the true class taken out by hand; the gradient of the divergence is that of a cross
    entropy between both softmaxes, times tau^2 as in `NTD_Loss` of the authors' criterion.py."""
    task, data = classes()

    def slope(k, v, w, x, y):
        total = x.T @ (softmax(x @ v) - np.eye(CLASSES)[y]) / len(y)
        for row, label in zip(x, y, strict=True):
            others = [c for c in range(CLASSES) if c != label]
            q, q_global = (softmax((row @ m)[None, others] / tau)[0] for m in (v, w))
            total[:, others] += beta * tau**2 * np.outer(row, (q - q_global) / tau) / len(y)
        return total

    found = run(fedax.FedNTD(beta=beta, tau=tau), task, engine).params
    np.testing.assert_allclose(found, train(data, slope), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("method", [fedax.FedLC(tau=2.0), fedax.FedNTD(tau=0.1)], ids=type)
def test_certain_predictions_stay_finite(method):
    """With logits of hundreds, of which all probabilities but one are zero."""
    task, _ = classes((1e3 * START).astype(np.float32))
    history = run(method, task)
    assert history.outcome.ok
    assert np.isfinite(np.asarray(history.params)).all()
