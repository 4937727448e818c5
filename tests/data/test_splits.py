"""Examples for validation and clients that never take part: disjoint, the same by either way, and
how they are looked at."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import observe
from parts import with_unseen, with_validation


def rows(data):
    return [data[k]["x"].tolist() for k in range(data.clients)]


def numbered(sizes):
    ends = np.cumsum([0, *sizes])
    return [np.arange(a, b, dtype=float) for a, b in itertools.pairwise(ends)]


def square(w, x):
    return (w - x) ** 2 / 2


def test_validation_takes_a_share_of_each_client_once():
    task = fedax.Task(
        0.0, square, fedax.FederatedData.from_arrays(numbered([10, 1, 5]), test=[[1.0], [2.0], []])
    )
    parts = with_validation(task, 0.3, seed=4)
    assert parts.train.sizes.tolist() == [7, 1, 3]
    assert parts.validation.sizes.tolist() == [3, 0, 2]
    for kept, away, all_ in zip(
        rows(parts.train), rows(parts.validation), rows(task.train), strict=True
    ):
        assert sorted(kept + away) == all_
        assert kept == sorted(kept)  # an order that was given stays
    assert rows(parts.test) == rows(task.test)
    assert rows(with_validation(task, 0.3, seed=5).train) != rows(parts.train)
    assert with_validation(task, 0.0) is task
    # examples of its own stay
    assert with_validation(parts, 0.0) is parts


def test_clients_that_are_unseen_take_no_part():
    task = fedax.Task(
        0.0,
        square,
        fedax.FederatedData.from_arrays(numbered([2, 3, 4, 5, 6]), test=numbered([1, 0, 1, 1, 1])),
    )
    parts = with_unseen(task, 0.4, seed=2)
    own = rows(parts.train)
    away = rows(parts.unseen.train)
    assert (len(own), len(away)) == (3, 2)
    assert sorted(own + away, key=min) == rows(task.train)
    tests = dict(zip(map(tuple, rows(task.train)), rows(task.test), strict=True))
    assert rows(parts.unseen.test) == [tests[tuple(client)] for client in away]
    assert (
        with_unseen(task, 0.01).unseen.train.clients,
        with_unseen(task, 0.99).train.clients,
    ) == (1, 1)


@pytest.mark.slow
def test_new_clients_are_evaluated_before_and_after_their_own_steps():
    """With full batches, s steps of size h bring w to m + (1 - h)^s (w - m), for the mean m of the
    client's examples."""
    task = fedax.Task(
        0.0,
        square,
        fedax.FederatedData.from_arrays(
            [[1.0, 3.0], [5.0], [-2.0, 0.0]], test=[[1.0, 2.0], [7.0], []]
        ),
    )
    for seed in (0, 1):
        parts = with_unseen(task, 0.6, seed)
        watch = [observe.Unseen("loss", steps=3), observe.TrainLoss()]
        options = {
            "solver": fedax.SGD(0.5),
            "schedule": fedax.Schedule(batch_size="full"),
            "rounds": 1,
        }
        history = fedax.run(fedax.FedAvg(), parts, observe=watch, **options)
        w = float(history.params)
        expected = []
        for train, test in zip(rows(parts.unseen.train), rows(parts.unseen.test), strict=True):
            mean = np.mean(train)
            for start in (w, mean + 0.5**3 * (w - mean)):
                expected.append(np.mean((start - np.array(test)) ** 2 / 2) if test else np.nan)
        before, after = np.array(expected).reshape(-1, 2).T
        np.testing.assert_allclose(history.metrics["unseen_loss_each"][-1], before, rtol=1e-12)
        np.testing.assert_allclose(
            history.metrics["unseen_loss_adapted_each"][-1], after, rtol=1e-12
        )
        np.testing.assert_allclose(
            history.last("unseen_loss_adapted"), np.nanmean(after), rtol=1e-12
        )
        alone = fedax.run(fedax.FedAvg(), fedax.Task(0.0, square, rows(parts.train)), **options)
        assert float(alone.params) == w


def test_validation_losses_are_means_over_all_examples():
    parts = fedax.Task(
        2.0,
        square,
        fedax.FederatedData.from_arrays([[0.0], [0.0]], validation=[[1.0, 2.0], [5.0]]),
        scores={"far": lambda w, x: jnp.abs(w - x)},
    )
    history = fedax.run(
        fedax.FedAvg(),
        parts,
        observe=[observe.ValidationLoss(), observe.ValidationScore("far")],
        rounds=0,
    )
    assert history.last("validation_loss") == pytest.approx((0.5 + 0 + 4.5) / 3, rel=1e-12)
    assert history.last("validation_far") == pytest.approx((1 + 0 + 3) / 3, rel=1e-12)


def test_every_task_by_name_has_the_splits():
    task = fedax.task("digits", clients=5, validation=0.5, unseen=0.2, seed=3)
    assert (task.train.clients, task.unseen.train.clients) == (4, 1)
    assert (
        task.train.total + task.validation.total + task.unseen.train.total
        == fedax.task("digits", seed=3).train.total
    )
