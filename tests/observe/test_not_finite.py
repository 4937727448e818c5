"""What is not finite is never left out, replaced or taken for something else."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import observe
from fedax.core import Outcome
from fedax.core.task import Given

ONE = {
    "engine": fedax.Simulation(devices=1),
    "schedule": fedax.Schedule(batch_size="full"),
    "solver": fedax.SGD(0.5),
}


def broken_at(bad, value=np.nan, clients=12):
    """A task whose loss and accuracy on the test example of client `bad` are `value`; client 0 has
    no test examples."""
    numbers = [np.array([[float(k), 0.0]]) for k in range(clients)]
    tests = [
        np.zeros((0, 2)),
        *(np.array([[float(k), 1.0 if k == bad else 0.0]]) for k in range(1, clients)),
    ]

    def loss(w, x):
        return jnp.where(x[:, 1] > 0, value, (w - x[:, 0]) ** 2)

    def accuracy(w, x):
        return jnp.where(x[:, 1] > 0, value, x[:, 0] / clients)

    return fedax.Task(
        0.0,
        loss,
        fedax.FederatedData.from_arrays(numbers, test=tests),
        scores={"accuracy": accuracy},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [fedax.Simulation(devices=1), fedax.Eager()], ids=["simulation", "eager"]
)
@pytest.mark.parametrize("personal", [False, True])
@pytest.mark.parametrize("score", ["accuracy", "loss"])
def test_means_over_clients_with_one_that_is_not_finite(engine, personal, score):
    method = fedax.Ditto() if personal else fedax.FedAvg()
    watch = [observe.ClientAccuracy(score, personal=personal)]
    seen = fedax.run(
        method, broken_at(5), rounds=0, observe=watch, **ONE | {"engine": engine}
    ).metrics
    name = f"{'local' if personal else 'client'}_{score}"
    for ending in ("mean", "variance", "pooled", "worst_tenth"):
        assert not np.isfinite(seen[f"{name}_{ending}"][0]), ending
    assert np.isnan(seen[name][0, [0, 5]]).all()
    whole = fedax.run(
        method, broken_at(-1), rounds=0, observe=watch, **ONE | {"engine": engine}
    ).metrics
    values = np.arange(1, 12) / 12 if score == "accuracy" else np.arange(1, 12) ** 2.0
    worst = np.sort(values)[:2] if score == "accuracy" else np.sort(values)[-2:]
    np.testing.assert_allclose(whole[f"{name}_mean"][0], values.mean(), rtol=1e-6)
    np.testing.assert_allclose(whole[f"{name}_worst_tenth"][0], worst.mean(), rtol=1e-6)


def test_accuracy_of_a_model_that_is_not_a_number():
    """`argmax` of NaN is class 0, which would be the accuracy of always saying 0."""
    task = fedax.task("digits", clients=3)
    watch = [
        observe.TestAccuracy(),
        observe.ClientAccuracy(),
        observe.F1(),
        observe.AUC(),
        observe.CalibrationError(),
    ]
    watch += [
        observe.SetMetric("right", lambda y, p: (p.argmax(1) == y).mean()),
        observe.NodeAccuracy(),
    ]
    spoiled = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), task.start(jax.random.key(0)))
    session = fedax.start(
        fedax.FedAvg(), eqx.tree_at(lambda t: t.start, task, Given(spoiled)), **ONE
    )
    seen = session.observe(session.init(), *watch)
    names = (
        "test_accuracy",
        "client_accuracy_mean",
        "client_accuracy_worst_tenth",
        "test_f1",
        "test_auc",
    )
    for name in (
        *names,
        "test_calibration_error",
        "test_right",
        "node_accuracy_mean",
        "node_accuracy_max",
    ):
        assert np.isnan(seen[name]), name


class Rises(fedax.core.Algorithm):
    """The model is the number of the round."""

    def round(self, fed, state):
        fed.average(self.train, fed.sample(), state)
        return state + 1

    def train(self, client, w):
        return fedax.core.Upload(client.minimize(start=w))


def watched(values):
    """A task whose validation accuracy after t rounds of `Rises` is `values[t]`."""
    table = jnp.asarray(values)

    def score(w, x):
        return 0 * x + table[jnp.clip(w, 0, len(values) - 1).astype(jnp.int32)]

    return fedax.Task(
        0.0,
        lambda w, x: 0 * w * x,
        fedax.FederatedData.from_arrays([[1.0]], validation=[[1.0]]),
        scores={"accuracy": score},
    )


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_best_model_is_finite_and_an_early_stop_says_what_was_not(value):
    options = {"observe": [observe.ValidationAccuracy()], "rounds": 5} | ONE
    kept = fedax.run(
        Rises(),
        watched([0.1, 0.5, value, 0.3, value, 0.2]),
        keep_best="validation_accuracy",
        **options,
    )
    assert (kept.best.round, round(kept.best.value, 6)) == (1, 0.5)
    stopped = fedax.run(
        Rises(),
        watched([0.1, 0.5, value, 0.3, 0.9, 0.9]),
        stop=fedax.EarlyStopping("validation_accuracy", 4),
        **options,
    )
    assert stopped.outcome == Outcome("non-finite", 1, part="validation_accuracy")
    assert not stopped.outcome.ok
    none = fedax.run(Rises(), watched([value] * 6), keep_best="validation_accuracy", **options)
    assert none.best is None
