"""Metrics of all predictions: against scikit-learn and loops, on predictions computed apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

import fedax
from fedax import observe
from fedax.core import InvalidInput
from fedax.tasks import logistic

WATCH = [
    observe.AUC(),
    observe.F1(),
    observe.CalibrationError(bins=10),
    observe.AUC(split="validation"),
    observe.TestAccuracy(),
]


@pytest.fixture(scope="module")
def digits():
    return fedax.task("digits", partition="iid", clients=3, validation=0.3, test_fraction=0.5)


@pytest.fixture(scope="module")
def history(digits):
    return fedax.run(
        fedax.FedAvg(), digits, solver=fedax.SGD(0.1), observe=WATCH, observe_every=2, rounds=2
    )


def probabilities(params, x):
    logits = np.asarray(x) @ np.asarray(params["kernel"]) + np.asarray(params["bias"])
    chances = np.exp(logits - logits.max(1, keepdims=True))
    return chances / chances.sum(1, keepdims=True)


def named(history, tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "m.safetensors"
    history.save(path)
    return fedax.load_params(path)


@pytest.mark.slow
def test_auc_and_f1_are_scikit_learns(digits, history, tmp_path_factory):
    params = named(history, tmp_path_factory)
    for split in ("test", "validation"):
        data = getattr(digits, split).arrays
        p = probabilities(params, data["x"])
        y = np.asarray(data["y"])
        np.testing.assert_allclose(
            history.last(f"{split}_auc"), roc_auc_score(y, p, multi_class="ovr"), rtol=1e-12
        )
        if split == "test":
            np.testing.assert_allclose(
                history.last("test_f1"), f1_score(y, p.argmax(1), average="macro"), rtol=1e-12
            )
            assert history.last("test_accuracy") == np.mean(p.argmax(1) == y)
            error = 0.0
            for b in range(10):
                inside = (p.max(1) > b / 10) & (p.max(1) <= (b + 1) / 10)
                if inside.any():
                    error += inside.mean() * abs(
                        (p.argmax(1) == y)[inside].mean() - p.max(1)[inside].mean()
                    )
            np.testing.assert_allclose(history.last("test_calibration_error"), error, rtol=1e-12)
    assert not [name for name in history.metrics if name.startswith("raw")]


@pytest.mark.slow
def test_members_of_a_grid_and_the_eager_engine_have_the_same(digits, history):
    options = {"solver": fedax.SGD(0.1), "observe": WATCH, "observe_every": 2, "rounds": 2}
    same = fedax.run_grid([fedax.FedProx(mu=0.0), fedax.FedProx(mu=1.0)], digits, **options)[0]
    eager = fedax.run(fedax.FedAvg(), digits, **options, engine=fedax.Eager())
    for name, values in history.metrics.items():
        np.testing.assert_allclose(same.metrics[name], values, rtol=1e-10)
        np.testing.assert_allclose(eager.metrics[name], values, rtol=1e-10)


@pytest.mark.slow
def test_predictions_come_in_pieces_that_overlap(monkeypatch, digits, history):
    from fedax.engine.round import evaluation

    monkeypatch.setattr(evaluation, "PIECE", 70)
    assert digits.test.total % 70 > 0
    data = jax.tree.map(jnp.asarray, digits.test)
    whole = digits.predictions(history.params, data.arrays, None)
    pieces = evaluation.map_examples(
        lambda examples: digits.predictions(history.params, examples, None), data
    )
    np.testing.assert_allclose(pieces, whole, rtol=1e-12)


def test_two_classes_by_the_margin():
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(20, 3)), "y": rng.integers(0, 2, 20)} for _ in range(2)]
    task = logistic(fedax.FederatedData.from_arrays(clients, classes=2, central=clients[0]))
    session = fedax.start(fedax.FedAvg(), task, params=np.array([1.0, -2.0, 0.5]))
    seen = session.observe(session.init(), observe.AUC(), observe.F1(average="binary"))
    margin = clients[0]["x"] @ [1.0, -2.0, 0.5]
    assert seen["test_auc"] == roc_auc_score(clients[0]["y"], margin)
    assert seen["test_f1"] == f1_score(clients[0]["y"], margin > 0)


def test_classes_that_are_not_there():
    p = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    y = np.array([0, 1, 0])
    assert observe.AUC().value(y, p) == np.mean(
        [roc_auc_score(y == 0, p[:, 0]), roc_auc_score(y == 1, p[:, 1])]
    )
    assert np.isnan(observe.AUC().value(np.zeros(3, int), p[:, :2]))
    assert np.isnan(observe.AUC().value(y, np.full((3, 3), np.nan)))
    assert observe.F1().value(y, p) == 1.0
    with pytest.raises(InvalidInput, match="binary"):
        observe.F1(average="binary").value(y, p)
    assert np.isnan(observe.CalibrationError().value(y, np.full((3, 3), np.nan)))


def two_classes(predict, low=0, **options):
    """Labels `low` and `low + 1` of named clients of 3, 5 and 4 examples."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 2)).astype(np.float32) for n in (3, 5, 4)]
    clients = {f"client {k}": {"x": x, "y": (x[:, 0] > 0) + low} for k, x in enumerate(x)}
    return fedax.Task(
        np.array([1.0, 0.5], np.float32),
        lambda w, e: (e["x"].astype(w.dtype) @ w - e["y"].astype(w.dtype)) ** 2,
        fedax.FederatedData.from_arrays(clients, test=clients),
        predictor=predict,
        **options,
    )


def both(w, e):
    p = jax.nn.sigmoid(e["x"].astype(w.dtype) @ w)
    return jnp.stack([1 - p, p], axis=1)


def watched(task, *observers):
    """The metrics of the first model, through the checks of a run."""
    return fedax.run(fedax.FedAvg(), task, rounds=0, observe=observers).metrics


OF_CLASSES = [observe.AUC, observe.F1, observe.CalibrationError]


@pytest.mark.slow
def test_labels_of_whole_real_numbers_and_truth_values_stay():
    expected = watched(two_classes(both), *(kind() for kind in OF_CLASSES))
    for low in (0.0, False):
        seen = watched(two_classes(both, low), *(kind() for kind in OF_CLASSES))
        for name in ("test_auc", "test_f1", "test_calibration_error"):
            assert seen[name] == expected[name]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_probabilities_of_half_precision(dtype):
    """Those of bfloat16 are no numbers to NumPy and scikit-learn. Rounding may exceed 1."""
    rounded = two_classes(lambda w, e: both(w, e).astype(dtype))
    seen = watched(rounded, *(kind() for kind in OF_CLASSES))
    expected = watched(two_classes(both), *(kind() for kind in OF_CLASSES))
    assert seen["test_auc"] == expected["test_auc"]
    np.testing.assert_allclose(
        seen["test_calibration_error"], expected["test_calibration_error"], atol=2e-2
    )
    above = np.array([[0.0, 1.0078125], [1.0, -0.0078125]], np.float32)
    assert observe.CalibrationError().value(np.array([1, 0]), above) < 1e-2
    broken = two_classes(lambda w, e: (both(w, e) * jnp.nan).astype(dtype))
    always = observe.SetMetric("one", lambda y, p: 1.0)
    assert np.isnan(watched(broken, always)["test_one"])
