"""Predictions in Python: `task.predict`, `history.predict`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import DataError
from fedax.data import FederatedData

RNG = np.random.default_rng(0)
CLIENTS = {name: {"x": RNG.normal(size=(6, 2)), "y": np.arange(6.0) % 2} for name in ("a", "b")}


def squares(w, e):
    return (e["x"] @ w - e["y"]) ** 2


@pytest.mark.slow
def test_a_built_in_task_predicts_probabilities():
    task = fedax.task("digits", clients=3)
    history = fedax.run(fedax.FedAvg(), task, rounds=1, keep_best="train_loss")
    x = np.asarray(task.test.arrays["x"])
    shown = history.predict(x)
    np.testing.assert_allclose(shown.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(
        shown, task.predict(history.params, {"x": x, "y": np.zeros(len(x), int)})
    )
    np.testing.assert_allclose(
        shown, task.predictions(history.params, {"x": jnp.asarray(x)}, None), rtol=1e-5
    )
    np.testing.assert_array_equal(
        task.predict(history.best.params, x), history.predict(x, best=True)
    )
    assert history.predict(x[:0]).shape == (0, 10)


@pytest.mark.slow
def test_more_examples_than_pass_at_once(monkeypatch):
    monkeypatch.setattr("fedax.core.validation.prediction.PIECE", 4)
    task = fedax.task("synthetic", clients=3)
    params = fedax.run(fedax.FedAvg(), task, rounds=1).params
    x = task.train.arrays["x"][:10]
    np.testing.assert_allclose(
        task.predict(params, x), task.predictions(params, {"x": jnp.asarray(x)}, None), rtol=1e-5
    )


@pytest.mark.slow
def test_a_model_that_is_no_classifier_predicts_its_outputs():
    nnx = pytest.importorskip("flax.nnx")
    data = {
        name: {key: values.astype(np.float32) for key, values in own.items()}
        for name, own in CLIENTS.items()
    }
    module = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    task = fedax.from_model(
        fedax.models.nnx(lambda rngs: module),
        lambda outputs, e: (outputs[:, 0] - e["y"].astype(outputs.dtype)) ** 2,
        data,
    )
    history = fedax.run(fedax.FedAvg(), task, rounds=1)
    nnx.update(module, history.params)
    np.testing.assert_allclose(
        history.predict(CLIENTS["a"]["x"]), module(CLIENTS["a"]["x"].astype(np.float32)), rtol=1e-5
    )


@pytest.mark.slow
def test_frozen_leaves_and_own_predictions():
    start = {"base": np.ones(2), "w": np.zeros(2)}

    def outputs(p, e):
        return e["x"] @ (p["base"] + p["w"])

    task = fedax.Task(
        start, lambda p, e: (outputs(p, e) - e["y"]) ** 2, CLIENTS, frozen="base", predictor=outputs
    )
    history = fedax.run(fedax.FedAvg(), task, rounds=1)
    x = CLIENTS["a"]["x"]
    np.testing.assert_allclose(
        history.predict(x), x @ (1 + np.asarray(history.params["w"])), rtol=1e-5
    )


@pytest.mark.usefixtures("as_users_run")
def test_numbers_are_refused_that_change_as_the_training_examples_type():
    """Pixels from 0 to 255 beside those from 0 to 1: a scaling was forgotten."""
    task = fedax.task("digits", clients=3)
    history = fedax.run(fedax.FedAvg(), task, rounds=1)
    x = task.test.arrays["x"][:4]
    pixels = (np.asarray(x) * 255).astype(np.uint8)
    with pytest.raises(DataError, match=r"predict\(x\)\['x'\]: got numbers of type uint8; allowed"):
        history.predict(pixels)
    assert history.predict(pixels.astype(int)).shape == (4, 10)
    with pytest.raises(DataError, match=r"got numbers of type int64; allowed: .* float32"):
        history.predict(np.full((1, 64), 2**60 + 1))
    with pytest.raises(DataError, match="NaN or infinity in row 0"):
        history.predict(np.full((1, 64), 1e300))
    clients = [{"x": np.ones((3, 2)), "y": np.zeros(3)}]
    with pytest.raises(DataError, match=r"test\['x'\]: got numbers of type uint8"):
        fedax.Task(
            np.zeros(2),
            squares,
            fedax.FederatedData.from_arrays(
                clients, test=[{"x": np.ones((1, 2), np.uint8), "y": np.ones(1)}]
            ),
        )


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("model", "refused"),
    [
        (fedax.models.Bigram(5), {5: "got token 5", -1: "a negative index"}),
        # negative numbers are zero vectors there
        (fedax.models.CharLSTM(5, hidden=2), {5: "got token 5"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tokens_of_predictions_are_those_of_the_vocabulary(model, refused):
    data = [{"x": np.array([[0, 1], [2, 4]]), "y": np.array([0, 1])}]
    task = fedax.classification(FederatedData.from_arrays(data, classes=5), model)
    params = task.start(jax.random.key(0))
    for token, words in refused.items():
        with pytest.raises(DataError, match=words):
            task.predict(params, np.array([[0, 1], [2, token]]))
    assert task.predict(params, np.array([[0, 4], [0, 4]])).shape == (2, 5)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("kind", [np.int8, np.int64, np.float64])
def test_whole_numbers_of_predictions_are_checked_against_what_they_index(kind):
    def outputs(w, examples):
        return w["table"][examples["item"]] * examples["x"]

    def loss(w, examples):
        return (outputs(w, examples) - 1) ** 2

    rows = {"x": np.ones(3, np.float32), "item": np.array([0, 1, 2])}
    table = {"table": np.arange(5, dtype=np.float32)}
    task = fedax.Task(table, loss, [rows], predictor=outputs)
    good = rows | {"item": np.array([0, 4, 2], kind)}
    assert task.predict(table, good).tolist() == [0, 4, 2]
    for item, words in (
        (5, "index 5 is out of bounds"),
        (-1, "'item' from -1 .*a negative index"),
    ):
        with pytest.raises(DataError, match=rf"predict\(x\): got whole numbers .*{words}"):
            task.predict(table, rows | {"item": np.array([0, item, 2], kind)})
        if kind is not np.float64:
            with pytest.raises(DataError, match=rf"Task\(loss=...\): got whole numbers .*{words}"):
                fedax.Task(table, loss, [rows | {"item": np.array([0, item, 2], kind)}])
    # without examples there is nothing to look up
    assert task.predict(table, {name: values[:0] for name, values in good.items()}).shape == (0,)
