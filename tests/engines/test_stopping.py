"""Early stopping and the best model: by hand, to the bit after a break, and each member of a grid
for itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import observe
from marks import slow

LINE = fedax.Task(
    {"a": 0.0},
    lambda w, x: (w["a"] - x) ** 2 / 2,
    fedax.FederatedData.from_arrays([[4.0], [4.0]], validation=[[1.0], []], test=[[4.0], [4.0]]),
)
"""Training goes from 0 to 4, half of the way in every round: 0, 2, 3, 3.5; best for validation at
1, so 0 and 2 are equal."""
WATCH = {
    "observe": [observe.TrainLoss(), observe.ValidationLoss()],
    "schedule": fedax.Schedule(batch_size="full"),
}
HALF = {"solver": fedax.SGD(0.5), **WATCH}


def a(params):
    return float(params["a"])


def test_a_run_ends_after_its_patience_and_keeps_the_best_model():
    """Validation losses 0.5, 0.5, 2, 3.125, ...: the first is the best, and two rounds later the
    run ends."""
    history = fedax.run(
        fedax.FedAvg(), LINE, stop=fedax.EarlyStopping(patience=2), rounds=9, **HALF
    )
    assert (history.outcome.kind, history.outcome.round, history.outcome.ok) == ("stopped", 1, True)
    assert str(history.outcome) == "stopped after round 2"
    assert history.metrics["validation_loss"].tolist() == [0.5, 0.5, 2.0]
    assert (a(history.params), a(history.best.params), history.best.round, history.best.value) == (
        3.0,
        0.0,
        0,
        0.5,
    )
    assert (
        fedax.run(
            fedax.FedAvg(), LINE, stop=fedax.EarlyStopping(patience=9), rounds=4, throw=True, **HALF
        ).outcome.kind
        == "ok"
    )


@pytest.mark.parametrize(
    ("metric", "values", "rule", "end"),
    [
        ("validation_loss", [3, 2, 1, 2, 1, 0.5], {"patience": 2}, 4),
        ("validation_loss", [3, 2, 1, 2, 0.9, 2, 2], {"patience": 2}, 6),
        ("validation_loss", [3, 2, 1.5, 1.2, 1.1], {"patience": 2, "min_change": 1.0}, 4),
        ("validation_accuracy", [0.1, 0.2, 0.3, 0.2, 0.1], {"patience": 2}, 4),
        ("validation_auc", [0.5, 0.4, 0.3, 0.6], {"patience": 3}, None),
        ("validation_loss", [np.nan, np.nan, 1, 2], {"patience": 2}, 1),
    ],
)
def test_the_rule_on_curves(metric, values, rule, end):
    """Observed every two rounds, patience is in rounds."""
    stop = fedax.EarlyStopping(
        metric,
        **rule | {"patience": 2 * rule["patience"]} if end != 1 else rule,
    )
    rounds = [2 * i for i in range(len(values))]
    mode = "min" if metric == "validation_loss" else "max"
    fired = [i for i in range(len(values)) if stop.fires(rounds[: i + 1], values[: i + 1], mode)]
    assert fired[:1] == ([] if end is None else [end])


def test_the_best_model_is_kept_without_stopping():
    """The training loss falls, so the last model is the best; of accuracies the highest counts, of
    equal ones the first."""
    history = fedax.run(fedax.FedAvg(), LINE, keep_best="train_loss", rounds=3, **HALF)
    assert (history.best.round, a(history.best.params)) == (3, a(history.params))
    assert fedax.run(fedax.FedAvg(), LINE, rounds=1, **HALF).best is None
    scored = dataclasses.replace(
        LINE,
        scores={"accuracy": lambda p, e, key: jnp.full(e.shape, jnp.where(p["a"] > 2.5, 1.0, 0.0))},
    )
    watch = HALF | {"observe": [observe.TestAccuracy()]}
    assert (
        fedax.run(fedax.FedAvg(), scored, keep_best="test_accuracy", rounds=4, **watch).best.round
        == 2
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [fedax.Simulation(), slow(fedax.Eager())], ids=["simulation", "eager"]
)
def test_each_member_of_a_grid_stops_for_itself(engine, tmp_path):
    """A larger proximal weight is slower, stops later, and each has the model, best model and bits
    of its run alone."""
    members = [fedax.FedProx(mu=mu) for mu in (0.0, 8.0)]
    options = {
        "stop": fedax.EarlyStopping(patience=1),
        "rounds": 12,
        "engine": engine,
        "checkpoint_every": 2,
    }
    options |= HALF | {
        "solver": fedax.SGD(0.1),
        "schedule": fedax.Schedule(steps=4, batch_size="full"),
    }
    alone = [fedax.run(member, LINE, **options) for member in members]
    grid = fedax.run_grid(members, LINE, checkpoint=tmp_path / "a", **options)
    broken = [
        fedax.run_grid(members, LINE, checkpoint=tmp_path / "b", **options | {"rounds": t})
        for t in (2, 3, 12)
    ][-1]
    ends = [history.outcome.round for history in alone]
    assert ends[0] < ends[1] < 11
    for one, together, resumed in zip(alone, grid, broken, strict=True):
        assert one.outcome == together.outcome == resumed.outcome
        assert len(one.bits.up) == len(together.bits.up) == len(resumed.bits.up)
        for other in (together, resumed):
            np.testing.assert_allclose(a(one.params), a(other.params), rtol=1e-14)
            np.testing.assert_allclose(a(one.best.params), a(other.best.params), rtol=1e-14)
        assert jax.tree.all(jax.tree.map(np.array_equal, together.params, resumed.params))


def test_divergence_and_early_stopping_together():
    rules = [fedax.Divergence(rise=0.1, window=1), fedax.EarlyStopping(patience=50)]
    history = fedax.run(
        fedax.FedAvg(), LINE, stop=rules, rounds=60, **HALF | {"solver": fedax.SGD(3.0)}
    )
    assert history.outcome.kind == "diverged"
