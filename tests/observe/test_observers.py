"""Observers against NumPy on the same model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.engine.round import evaluation
from marks import slow
from problems import SIZES, regression, squares


def test_train_loss_counts_every_example_alike():
    task = regression()
    history = fedax.run(fedax.FedAvg(), task, rounds=0, observe=[fedax.observe.TrainLoss()])
    params = {"b": np.zeros(()), "w": np.full(3, 0.1)}
    per_client = [float(np.mean(squares(params, task.train[k]))) for k in range(5)]
    np.testing.assert_allclose(
        history.last("train_loss"), np.average(per_client, weights=SIZES), rtol=1e-12
    )


def test_the_objective_has_l2_and_the_gap_its_minimum():
    """(w - x)^2 on 1 and 3 with l2 = 0.5 at w = 1: mean 2, l2 adds 0.25."""
    task = fedax.Task(1.0, lambda w, x: (w - x) ** 2, [[1.0], [3.0]], l2=0.5)
    watched = [fedax.observe.Objective(minimum=1.5)]
    history = fedax.run(fedax.FedAvg(), task, rounds=0, observe=watched)
    np.testing.assert_allclose(history.last("objective"), 2.25, rtol=1e-12)
    np.testing.assert_allclose(history.last("objective_gap"), 0.75, rtol=1e-12)
    plain = fedax.run(fedax.FedAvg(), task, rounds=0, observe=[fedax.observe.Objective()])
    assert "objective_gap" not in plain.metrics


@pytest.mark.slow
@pytest.mark.parametrize("piece", [7, 2048])
def test_dissimilarity_by_its_definition(piece, monkeypatch):
    monkeypatch.setattr("fedax.engine.round.evaluation.PIECE", piece)
    task = regression()
    history = fedax.run(fedax.FedAvg(), task, rounds=0, observe=[fedax.observe.Dissimilarity()])
    params = {"b": jnp.zeros(()), "w": jnp.full(3, 0.1)}

    def local(params, k):
        data = {name: jnp.asarray(v) for name, v in task.train[k].items()}
        return squares(params, data).mean() + 0.005 * (params["b"] ** 2 + (params["w"] ** 2).sum())

    gradients = []
    for k in range(5):
        g = jax.grad(local)(params, k)
        gradients.append(np.concatenate([np.ravel(g["b"]), g["w"]]))
    gradients = np.array(gradients)
    p = np.array(SIZES) / sum(SIZES)
    mean = p @ gradients
    squared = (gradients**2).sum(1)
    expected = {
        "dissimilarity": np.sqrt(p @ squared) / np.linalg.norm(mean),
        "gradient_diversity": np.sqrt(squared.mean()) / np.linalg.norm(gradients.mean(0)),
        "gradient_norm": np.linalg.norm(mean),
        "gradient_variance": ((gradients - mean) ** 2).sum(1).mean(),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(history.last(name), value, rtol=1e-10)


def test_larger_examples_pass_in_smaller_pieces():
    """So that a CPU's caches hold the layers; never more than there are."""

    def width(*shape, count=5000):
        data = fedax.core.Ragged.flat({"x": np.zeros((count, *shape))}, [count])
        return evaluation.examples_at_once(data, count)

    assert (width(60), width(28, 28), width(32, 32, 3), width(60, count=9)) == (256, 167, 64, 9)


def scored(test, central=None):
    """A model that says 1; its score is whether the example is below it."""
    return fedax.Task(
        1.0,
        lambda w, x: (w - x) ** 2,
        fedax.FederatedData.from_arrays(
            [[0.0] * n for n in (3, 1, 5, 2)], test=test, central=central
        ),
        scores={"accuracy": lambda w, x: (x < w).astype(w.dtype)},
    )


def test_client_accuracy_by_hand(monkeypatch):
    """Accuracies 1/2, 1, none, 0: mean 1/2, variance 1/6, worst tenth 0, smallest client 1, largest
    (with test data) 0."""
    monkeypatch.setattr("fedax.engine.round.evaluation.PIECE", 2)
    task = scored([[0.0, 2.0], [0.0], [], [2.0, 2.0, 2.0]])
    watch = [fedax.observe.ClientAccuracy(), fedax.observe.TestAccuracy(), fedax.observe.TestLoss()]
    history = fedax.run(fedax.FedAvg(), task, rounds=0, observe=watch)
    np.testing.assert_allclose(history.metrics["client_accuracy"][0], [0.5, 1.0, np.nan, 0.0])
    expected = {"mean": 0.5, "variance": 1 / 6, "worst_tenth": 0.0, "smallest": 1.0, "largest": 0.5}
    for name, value in expected.items():
        np.testing.assert_allclose(history.last(f"client_accuracy_{name}"), value, rtol=1e-12)
    # by example, not by client
    np.testing.assert_allclose(history.last("test_accuracy"), 2 / 6, rtol=1e-12)
    np.testing.assert_allclose(history.last("test_loss"), 1.0, rtol=1e-12)


def test_methods_with_own_models_show_these_by_default():
    """Clients at 0 and 4: the global model is far from both, each client's own one near its own."""
    train = {f"client {k}": np.full(k + 1, 4.0 * (k % 2)) for k in range(4)}
    data = fedax.FederatedData.from_arrays(train, test=train)
    scores = {"accuracy": lambda w, x: (jnp.abs(w - x) < 1).astype(float)}
    task = fedax.Task(2.0, lambda w, x: (w - x) ** 2 / 2, data, scores=scores)
    shown = {
        type(method): fedax.run(
            method, task, rounds=20, schedule=fedax.Schedule(cohort=2), solver=fedax.SGD(0.3)
        )
        for method in (fedax.Ditto(lam=0.01), fedax.FedAvg())
    }
    own = shown[fedax.Ditto]
    assert own.last("test_accuracy") < 1
    np.testing.assert_allclose(own.metrics["local_accuracy"][-1], 1)
    np.testing.assert_allclose(own.last("local_accuracy_worst_tenth"), 1)
    assert shown[fedax.FedAvg].metrics.keys() == {"train_loss", "test_accuracy"}


def test_means_of_clients_of_any_size_in_single_precision():
    """Named clients with none to thousands of test examples, whose values add up in groups."""
    rng = np.random.default_rng(0)
    sizes = [700, 0, 1, 64, 0, 30_000, 5]
    test = {f"client {k}": rng.uniform(size=n).astype("f") for k, n in enumerate(sizes)}
    with jax.enable_x64(False):
        data = fedax.FederatedData.from_arrays({name: np.ones(1, "f") for name in test}, test=test)
        scores = {"accuracy": lambda w, x: x + 0 * w}
        task = fedax.Task(np.float32(1), lambda w, x: (w - x) ** 2, data, scores=scores)
        history = fedax.run(
            fedax.FedAvg(), task, rounds=0, observe=[fedax.observe.ClientAccuracy()]
        )
    expected = [values.astype(float).mean() if len(values) else np.nan for values in test.values()]
    np.testing.assert_allclose(history.metrics["client_accuracy"][0], expected, rtol=1e-6)


def test_a_global_test_set_comes_first():
    history = fedax.run(
        fedax.FedAvg(),
        scored([[2.0]] * 4, central=[0.0, 0.0, 2.0, 0.0]),
        rounds=0,
        observe=[fedax.observe.TestAccuracy()],
    )
    np.testing.assert_allclose(history.last("test_accuracy"), 0.75, rtol=1e-12)


@pytest.mark.slow
def test_consensus_and_node_accuracy():
    """Isolated clients that stand at 0, 1 and 4: mean 5/3; scores are the shares of the test set
    {0, 1, 2, 3} below each."""
    task = fedax.Task(
        9.0,
        lambda w, x: (w - x) ** 2 / 2,
        fedax.FederatedData.from_arrays([[0.0], [1.0], [4.0]], central=[0.0, 1.0, 2.0, 3.0]),
        scores={"accuracy": lambda w, x: (x < w).astype(w.dtype)},
    )
    watch = [fedax.observe.Consensus(), fedax.observe.NodeAccuracy(), fedax.observe.TestAccuracy()]
    expected = {
        "consensus": 14 / 9,
        "node_accuracy_mean": 5 / 12,
        "node_accuracy_min": 0,
        "node_accuracy_max": 1,
    }
    for engine in (fedax.Simulation(), fedax.Eager()):
        options = {
            "solver": fedax.SGD(1.0),
            "schedule": fedax.Schedule(steps=1),
            "rounds": 1,
            "observe": watch,
            "engine": engine,
        }
        history = fedax.run(fedax.DFedAvgM(topology="isolated"), task, **options)
        for name, value in (expected | {"test_accuracy": 0.5}).items():
            np.testing.assert_allclose(history.last(name), value, rtol=1e-12, err_msg=name)
        assert history.metrics["consensus"][0] == 0
        served = fedax.run(fedax.FedAvg(), task, **options)
        assert served.last("consensus") == 0
        assert (
            served.last("node_accuracy_min")
            == served.last("node_accuracy_max")
            == served.last("test_accuracy")
        )


@pytest.mark.slow
@pytest.mark.parametrize("engine", [fedax.Simulation, slow(fedax.Eager)])
def test_extremes_of_the_last_cohort(engine):
    """The cohort's numbers by hand from the history of a method that notes whom it drew, with
    FedBC's multipliers and without."""
    task = scored([[0.0, 2.0], [0.0], [1.5], [2.0, 2.0, 2.0]])
    sizes = np.array([3, 1, 5, 2])
    accuracies = np.array([0.5, 1.0, 0.0, 0.0])
    options = {
        "schedule": fedax.Schedule(cohort=2, steps=1, batch_size="full"),
        "solver": fedax.SGD(1e-3),
        "rounds": 5,
        "observe": [fedax.observe.Extremes()],
        "engine": engine(),
        "seed": 3,
    }
    drawn = fedax.run(Drawn(), task, **options).logged["ids"]
    assert len({tuple(sorted(ids)) for ids in drawn.tolist()}) > 2
    plain = fedax.run(fedax.FedAvg(), task, **options)
    own = fedax.run(fedax.FedBC(dual_lr=0.5), task, **options)
    multipliers = np.zeros(4)
    for t, ids in enumerate(drawn):
        multipliers[ids] = np.asarray(
            fedax.run(fedax.FedBC(dual_lr=0.5), task, **options | {"rounds": t + 1})
            .state.clients.all()
            .dual.lam
        )[ids]
        small = ids[np.argmin(sizes[ids])]
        large = ids[np.argmax(sizes[ids])]
        expected = {"share": sizes / sizes[ids].sum(), "drawn_accuracy": accuracies}
        for history, weights in (
            (plain, sizes),
            (own, multipliers if multipliers[ids].sum() > 0 else sizes),
        ):
            for name, values in (expected | {"weight": weights / weights[ids].sum()}).items():
                told = [
                    history.metrics[f"{name}_{which}"][t + 1]
                    for which in ("smallest", "largest", "gap")
                ]
                true = [values[small], values[large], abs(values[large] - values[small])]
                np.testing.assert_allclose(told, true, rtol=1e-9, err_msg=f"{name} after round {t}")
    assert not np.allclose(own.metrics["weight_gap"][2:], own.metrics["share_gap"][2:])


def test_weights_by_size_are_the_shares_to_the_bit(as_users_run):
    task = fedax.task("synthetic", clients=30)
    history = fedax.run(fedax.FedAvg(), task, rounds=1, observe=[fedax.observe.ClientWeights()])
    assert not any(history.metrics[f"weight_{change}"].any() for change in ("raised", "lowered"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [fedax.Simulation, fedax.Eager])
def test_weights_of_all_clients(engine):
    """By hand from FedBC's own multipliers; by sizes for a method without, and before FedBC's first
    round."""
    task = scored([[0.0, 2.0], [0.0], [1.5], [2.0, 2.0, 2.0]])
    share = np.array([3, 1, 5, 2]) / 11
    options = {
        "schedule": fedax.Schedule(cohort=2, steps=1, batch_size="full"),
        "solver": fedax.SGD(0.1),
        "rounds": 5,
        "observe": [fedax.observe.ClientWeights()],
        "engine": engine(),
        "seed": 3,
    }
    plain = fedax.run(fedax.FedAvg(), task, **options)
    own = fedax.run(fedax.FedBC(dual_lr=0.5), task, **options)
    lam = np.asarray(own.state.clients.all().dual.lam)
    assert lam.sum() > 0
    for history, t, weight in ((plain, -1, share), (own, 0, share), (own, -1, lam / lam.sum())):
        told = {name: values[t] for name, values in history.metrics.items()}
        np.testing.assert_allclose(told["client_weight"], weight, rtol=1e-9)
        np.testing.assert_allclose(told["client_share"], share, rtol=1e-9)
        assert told["client_weight_smallest"] == told["client_weight"][1]
        assert told["client_weight_largest"] == told["client_weight"][2]
        # the mean is 2.75: clients 1 and 3 are below it, 0 and 2 above
        assert (
            told["weight_raised"]
            == sum(told["client_weight"][k] > told["client_share"][k] for k in (1, 3)) / 2
        )
        assert (
            told["weight_lowered"]
            == sum(told["client_weight"][k] < told["client_share"][k] for k in (0, 2)) / 2
        )
    assert own.last("weight_raised") + own.last("weight_lowered") > 0


class Drawn(fedax.Algorithm):
    """Notes whom it draws."""

    def round(self, fed, state):
        cohort = fed.sample()
        fed.log(ids=cohort.ids)
        return fed.average(self.train, cohort, state)

    def train(self, client, w):
        return fedax.Upload(w)
