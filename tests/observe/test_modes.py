"""Directions of metrics: stated where a score is defined, told where it is not, and never guessed
from a name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax import observe
from fedax.core import InvalidInput
from fedax.core.directions import is_better, worst_of

ONE = {
    "engine": fedax.Simulation(devices=1),
    "schedule": fedax.Schedule(batch_size="full"),
    "solver": fedax.SGD(0.5),
}
VALUES = st.lists(
    st.floats(-5, 5, width=32) | st.sampled_from([np.nan, np.inf, -np.inf]), min_size=1, max_size=6
)


def line(**scores):
    """Clients at 1 and 3; the model goes from 0 towards 2, so that the loss falls and w rises."""
    some = [{"x": np.array([at]), "y": np.array([0])} for at in (1.0, 3.0)]

    def predict(w, examples):
        return jnp.stack([examples["x"], 0 * examples["x"]], axis=1)

    def loss(w, examples):
        return (w - examples["x"]) ** 2 / 2

    return fedax.Task(
        0.0,
        loss,
        fedax.FederatedData.from_arrays(some, test=some, validation=some),
        predictor=predict,
        **scores,
    )


def rising(w, examples):
    return jax.tree.leaves(examples)[0] * 0 + w


WITH_RECALL = {"scores": {"recall": rising}}


@pytest.mark.parametrize(
    "options",
    [
        {"keep_best": "validation_recall"},
        {"keep_best": "validation_mcc"},
        {"stop": fedax.EarlyStopping("validation_recall")},
        {"stop": [fedax.EarlyStopping("validation_mcc")]},
        {
            "keep_best": "validation_accuracy_error",
            "observe": [observe.SetMetric("accuracy_error", len, split="validation")],
        },
    ],
)
def test_a_metric_without_a_direction_is_refused_before_anything_runs(options):
    watch = {
        "observe": [
            observe.ValidationScore("recall"),
            observe.SetMetric("mcc", len, split="validation"),
        ]
    }
    with pytest.raises(InvalidInput, match="modes="):
        fedax.run(fedax.FedAvg(), line(**WITH_RECALL), rounds=1, **ONE | watch | options)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["observer", "task"])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_model_is_that_of_the_stated_direction(way, mode):
    task = line(**WITH_RECALL, **({"modes": {"recall": mode}} if way == "task" else {}))
    watch = [observe.ValidationScore("recall", **({"mode": mode} if way == "observer" else {}))]
    history = fedax.run(
        fedax.FedAvg(), task, rounds=4, observe=watch, keep_best="validation_recall", **ONE
    )
    curve = history.metrics["validation_recall"]
    assert (
        history.best.round
        == (np.argmax(curve) if mode == "max" else np.argmin(curve))
        == (4 if mode == "max" else 0)
    )
    assert history.details.modes == {"validation_recall": mode}


@pytest.mark.slow
def test_early_stopping_follows_the_direction():
    options = {"stop": fedax.EarlyStopping("validation_recall", 2), "rounds": 6} | ONE
    for mode, end in {"max": 6, "min": 2}.items():
        watch = [observe.ValidationScore("recall", mode=mode)]
        history = fedax.run(fedax.FedAvg(), line(**WITH_RECALL), observe=watch, **options)
        assert len(history.bits.up) == end


def test_the_worst_tenth_of_a_loss_is_the_highest():
    clients = [[float(k)] for k in range(1, 21)]
    task = fedax.Task(
        0.0,
        lambda w, x: (w - x) ** 2,
        fedax.FederatedData.from_arrays(clients, test=clients),
        scores={"recall": rising},
    )
    history = fedax.run(
        fedax.FedAvg(),
        task,
        rounds=0,
        observe=[observe.ClientAccuracy("loss")],
        engine=ONE["engine"],
    )
    assert history.last("client_loss_worst_tenth") == (20**2 + 19**2) / 2
    with pytest.raises(InvalidInput, match="worst tenth"):
        fedax.run(
            fedax.FedAvg(),
            task,
            rounds=0,
            observe=[observe.ClientAccuracy("recall")],
            engine=ONE["engine"],
        )


def test_a_score_cannot_have_the_name_of_the_loss():
    with pytest.raises(InvalidInput, match="the loss has this one"):
        line(scores={"loss": rising})


@given(VALUES, st.sampled_from(["min", "max"]))
@settings(max_examples=60, deadline=None)
def test_nothing_that_is_not_finite_is_better_and_the_worst_is_finite(values, mode):
    best = None
    for value in values:
        if is_better(value, best, mode):
            best = value
    finite = [value for value in values if np.isfinite(value)]
    pick, opposite = (max, min) if mode == "max" else (min, max)
    assert best == (pick(finite) if finite else None)
    assert worst_of(values, mode) == (
        opposite(finite) if finite else (-np.inf if mode == "max" else np.inf)
    )
