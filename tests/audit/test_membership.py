"""Membership inference: guessing on untrained models, success on overfitted ones, and the pieces by
hand."""

import json

import numpy as np
import pytest

import fedax
from fedax.audit import membership
from fedax.audit.membership import Attack, area, quarters, shadow_classifier
from fedax.core import InvalidInput
from fedax.data import FederatedData
from fedax.models import MLP, Softmax
from fedax.tasks import classification


def noisy_digits(count=800, clients=2):
    """Small digits with half of the labels random: what is learned of those is learned by heart."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(y))[:count]
    x = x[chosen] / 16
    y = np.where(rng.random(count) < 0.5, rng.integers(0, 10, count), y[chosen])
    parts = [
        {"x": a, "y": b}
        for a, b in zip(np.array_split(x, clients), np.array_split(y, clients), strict=True)
    ]
    return classification(FederatedData.from_arrays(parts, classes=10), MLP((64, 64, 10)))


@pytest.mark.slow
def test_guessing_before_training_and_success_after_overfitting():
    """A fair guess has AUC 0.5 with standard deviation sqrt((m + n + 1) / (12 m n)), here 0.029."""
    schedule = fedax.Schedule(epochs=10, batch_size=10)
    options = {
        "solver": fedax.SGD(0.03, momentum=0.9),
        "schedule": schedule,
        "engine": fedax.Simulation(devices=1),
    }
    found = membership(fedax.FedAvg(), noisy_digits(), looks=(0, 30), seed=1, **options)
    sigma = np.sqrt(401 / (12 * 200 * 200))
    for name, (before, after) in found.auc.items():
        assert abs(before - 0.5) < 4 * sigma, name
        assert after > 0.5 + 5 * sigma, name
    assert found.rounds.tolist() == [0, 30]


def test_no_look_is_of_rounds_that_a_budget_did_not_allow():
    channel = fedax.Channel(privacy=fedax.Privacy(noise=9.0, delta=0.1, budget=1.0))
    schedule = fedax.Schedule(steps=1, weights="equal")
    options = {"schedule": schedule, "channel": channel}
    found = membership(fedax.FedAvg(), noisy_digits(), looks=(1, 900), **options)
    assert found.rounds.tolist() == [1]
    assert found.history.outcome.by_budget


def test_quarters_are_disjoint_and_stay_with_their_clients():
    sizes = (8, 11)
    clients = [
        {"x": np.arange(n)[:, None] + 100.0 * k, "y": np.zeros(n, int)} for k, n in enumerate(sizes)
    ]
    task = classification(FederatedData.from_arrays(clients, classes=2), Softmax(1, 2))
    parts = quarters(task, seed=3)
    four = [part.arrays["x"] for part in parts]
    everything = np.sort(np.concatenate([np.ravel(part) for part in four]))
    np.testing.assert_array_equal(
        everything, np.sort(np.concatenate([client["x"][:, 0] for client in clients]))
    )
    assert [len(part) for part in four] == [2 + 3, 2 + 3, 2 + 3, 2 + 2]
    for part in parts:
        for k in range(2):
            assert (np.asarray(part[k]["x"]) // 100 == k).all()


def test_areas_by_hand():
    """Scores 3, 1 of members and 2, 0 of others: three of four pairs are in order. Tied pairs count
    half."""
    assert area(np.array([3.0, 1.0]), np.array([2.0, 0.0])) == 0.75
    assert area(np.arange(10.0), np.arange(10.0)) == 0.5


def test_remainders_of_small_clients_go_to_the_parts_in_turn():
    """Sizes from 4 to 9: the first part of every client would have 5 examples more than the last
    one if the remainders always began there."""
    sizes = (5, 7, 4, 5, 9, 6, 5)
    clients = {
        f"client {k}": {
            "x": (np.arange(n)[:, None] + 100 * k).astype(np.float32),
            "y": np.arange(n) % 2,
        }
        for k, n in enumerate(sizes)
    }
    task = classification(FederatedData.from_arrays(clients, classes=2), Softmax(1, 2))
    parts = quarters(task)
    assert sorted(part.total for part in parts) == [10, 10, 10, 11]
    for part in parts:
        assert (part.sizes >= np.array(sizes) // 4).all()
        assert (part.sizes <= -(-np.array(sizes) // 4)).all()


def test_shadow_attack_learns_confidence():
    """Members get one probability near 1, others three equal ones; the order of the classes carries
    nothing."""
    rng = np.random.default_rng(0)
    sure = rng.permuted(np.tile([0.97, 0.01, 0.01, 0.01], (300, 1)), axis=1)
    unsure = rng.permuted(np.tile([0.33, 0.33, 0.33, 0.01], (300, 1)), axis=1)
    attack = shadow_classifier(sure[:200], unsure[:200])
    members, others = (attack.predict_proba(rows)[:, 1] for rows in (sure[200:], unsure[200:]))
    assert area(members, others) > 0.99
    np.testing.assert_array_equal(
        attack.predict_proba(sure[:1]), attack.predict_proba(sure[:1, ::-1])
    )


@pytest.mark.slow
def test_an_interrupted_audit_continues_to_the_same_numbers(tmp_path):
    """Asked to stop after the second look; the call that continues trains only what is missing, and
    ends at the same areas."""
    schedule = fedax.Schedule(epochs=2, batch_size=10)
    options = {
        "solver": fedax.SGD(0.03, momentum=0.9),
        "schedule": schedule,
        "looks": (0, 2, 4),
        "seed": 1,
    }
    options |= {"observe": [fedax.observe.TrainLoss()]}
    task = noisy_digits(200)
    straight = membership(fedax.FedAvg(), task, **options)
    seen = []

    def stop(observation):
        seen.append(observation.round)
        assert observation.rounds == 4
        return observation.round == 2

    begun = membership(fedax.FedAvg(), task, progress=stop, checkpoint=tmp_path, **options)
    assert begun.rounds.tolist() == [0, 2]
    assert begun.history.outcome.kind == "interrupted"
    assert max(seen) == 2
    seen.clear()
    for _ in ("continued", "kept"):
        found = membership(
            fedax.FedAvg(),
            task,
            progress=lambda o: seen.append(o.round),
            checkpoint=tmp_path,
            **options,
        )
        assert seen == [4, 4]
        assert found.rounds.tolist() == [0, 2, 4]
        for name, areas in straight.auc.items():
            np.testing.assert_array_equal(found.auc[name], areas)
        np.testing.assert_array_equal(
            found.history.metrics["train_loss"], straight.history.metrics["train_loss"]
        )
        assert found.history.outcome.ok
        assert (np.diff(found.seconds) > 0).all()
    look = json.loads((tmp_path / "look-000000004.json").read_text())
    assert look["shadow"] == straight.auc["shadow"][-1]
    with pytest.raises(InvalidInput, match=r"attack\.top"):
        membership(fedax.FedAvg(), task, attack=Attack(top=1), checkpoint=tmp_path, **options)


@pytest.mark.slow
def test_a_model_that_is_not_finite_ends_the_audit():
    """Far too long a step: weights overflow, or logits do."""
    schedule = fedax.Schedule(steps=5, batch_size=10)
    for rate in (1e150, 1e308):
        found = membership(
            fedax.FedAvg(),
            noisy_digits(80),
            looks=(0, 3, 6),
            solver=fedax.SGD(rate),
            schedule=schedule,
        )
        assert found.rounds.tolist() == [0]
        assert found.history.outcome.kind in ("non-finite", "diverged")
