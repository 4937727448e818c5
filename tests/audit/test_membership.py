"""Membership inference: guessing on untrained models, success on overfitted ones, and the pieces by hand."""

import numpy as np
import pytest

import fedax
from fedax.audit import ShadowAttack, curve, membership, quarters
from fedax.audit.attacks import largest
from fedax.core import DataError, InvalidInput
from fedax.data import FederatedData
from fedax.models import MLP, Softmax
from fedax.tasks import classification
from problems import regression


def noisy_digits(count=800, clients=2):
    """Small digits with half of the labels random: what is learned of those is learned by heart."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(y))[:count]
    x, y = x[chosen] / 16, np.where(rng.random(count) < 0.5, rng.integers(0, 10, count), y[chosen])
    parts = [{"x": a, "y": b} for a, b in zip(np.array_split(x, clients), np.array_split(y, clients), strict=True)]
    return classification(FederatedData(parts, classes=10), MLP((64, 64, 10)))


def test_guessing_before_training_and_success_after_overfitting():
    """A fair guess has AUC 0.5 with standard deviation sqrt((m + n + 1) / (12 m n)), here 0.029."""
    schedule = fedax.Schedule(epochs=10, batch_size=10)
    options = {"solver": fedax.SGD(0.03, momentum=0.9), "schedule": schedule, "engine": fedax.Simulation(devices=1)}
    found = membership(fedax.FedAvg(), noisy_digits(), looks=(0, 30), seed=1, **options)
    sigma = np.sqrt(401 / (12 * 200 * 200))
    for name, (before, after) in found.auc.items():
        assert abs(before - 0.5) < 4 * sigma, name
        assert after > 0.5 + 5 * sigma, name
    assert found.rounds.tolist() == [0, 30]


def test_quarters_are_disjoint_and_stay_with_their_clients():
    sizes = (8, 11)
    clients = [{"x": np.arange(n)[:, None] + 100.0 * k, "y": np.zeros(n, int)} for k, n in enumerate(sizes)]
    task = classification(FederatedData(clients, classes=2), Softmax(1, 2))
    parts = quarters(task, seed=3)
    four = [parts.target.train.arrays["x"], parts.target_out["x"], parts.shadow.train.arrays["x"], parts.shadow_out["x"]]
    everything = np.sort(np.concatenate([np.ravel(part) for part in four]))
    np.testing.assert_array_equal(everything, np.sort(np.concatenate([client["x"][:, 0] for client in clients])))
    assert [len(part) for part in four] == [2 + 3, 2 + 3, 2 + 3, 2 + 2]
    for side in (parts.target, parts.shadow):
        for k in range(2):
            assert (np.asarray(side.train.client(k)["x"]) // 100 == k).all()


def test_curve_by_hand():
    """Scores 3, 1 of members and 2, 0 of others: three of four pairs are in order."""
    found = curve(np.array([3.0, 1.0]), np.array([2.0, 0.0]))
    assert found.auc == 0.75
    assert found.true_at(0.0) == 0.5
    assert found.true_at(0.5) == 1.0


def test_shadow_attack_learns_confidence():
    """Members get one probability near 1, others three equal ones; the order of the classes carries nothing."""
    rng = np.random.default_rng(0)
    sure = rng.permuted(np.tile([0.97, 0.01, 0.01, 0.01], (300, 1)), axis=1)
    unsure = rng.permuted(np.tile([0.33, 0.33, 0.33, 0.01], (300, 1)), axis=1)
    attack = ShadowAttack(sure[:200], unsure[:200])
    assert curve(attack.scores(sure[200:]), attack.scores(unsure[200:])).auc > 0.99
    np.testing.assert_array_equal(attack.scores(sure[:1]), attack.scores(sure[:1, ::-1]))


def test_two_classes_show_both_probabilities():
    assert largest(np.array([[0.2, 0.8]])).tolist() == [[0.8, 0.2]]


def test_refusals():
    task = noisy_digits(40)
    cases = [
        (lambda: membership(fedax.FedAvg(), regression()), "classification tasks"),
        (lambda: membership(fedax.FedAvg(), task, looks=(3, 3)), r"\[3, 3\]; allowed: ascending"),
        (lambda: membership(fedax.FedAvg(), task, looks=()), "ascending"),
    ]
    for make, message in cases:
        with pytest.raises(InvalidInput, match=message):
            make()
    with pytest.raises(DataError, match=r"train\[0\]: got '3 examples'; allowed: at least 4"):
        quarters(noisy_digits(6))
