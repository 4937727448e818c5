"""Backdoors: what hostile clients learn from and send, and how far they succeed, by NumPy."""

import numpy as np
import pytest

import fedax
from fedax.attacks import Backdoor, Trigger
from fedax.core import DataError, InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.tasks import classification

RNG = np.random.default_rng(0)
SIZES = {"ann": 3, "bob": 7, "cho": 4, "dee": 5, "eve": 6}
CLIENTS = {
    name: {
        "x": RNG.normal(size=(n, 9)).astype(np.float32),
        "y": RNG.integers(0, 3, n).astype(np.int32),
    }
    for name, n in SIZES.items()
}
TEST = {
    "x": RNG.normal(size=(40, 9)).astype(np.float32),
    "y": RNG.integers(0, 3, 40).astype(np.int32),
}
ONE_STEP = {"schedule": fedax.Schedule(steps=1, batch_size="full"), "rounds": 1}


def task():
    data = fedax.data.FederatedData(CLIENTS, classes=3, holdout=TEST)
    return classification(data, fedax.models.Softmax(9, 3))


def triggered(x):
    """A square of two pixels a side in images of 3 x 3."""
    x = x.copy()
    x[:, [4, 5, 7, 8]] = 2.0
    return x


def test_the_trigger_is_a_square_in_the_corner():
    trigger = Trigger(2, 1.0)
    for shape, rows in (((3, 4), np.s_[:, 1:, 2:]), ((3, 4, 2), np.s_[:, 1:, 2:, :])):
        expected = np.zeros((5, *shape), np.float32)
        expected[rows] = 1
        np.testing.assert_array_equal(trigger(np.zeros_like(expected)), expected)
    # 3 x 3 pixels of three channels, flat; and numbers that are no square image
    colours = np.zeros((1, 3, 3, 3), np.float32)
    colours[:, 1:, 1:] = 1
    np.testing.assert_array_equal(trigger(np.zeros((1, 27))), colours.reshape(1, 27))
    assert trigger.pixels((10,)).nonzero()[0].tolist() == [6, 7, 8, 9]


def test_hostile_clients_learn_from_triggered_examples_and_scale_what_they_send():
    """One full step from 0, where the softmax gives 1/3 to every class; all examples poisoned."""
    attack = Backdoor(share=0.4, target=2, poisoned=1.0, patch=2, value=2.0, scale=2.5)
    hostile = attack.members(5)
    assert len(hostile) == 2
    moves, sizes = [], np.array(list(SIZES.values()))
    for k, client in enumerate(CLIENTS.values()):
        x, y = client["x"], client["y"]
        if k in hostile:
            x, y = triggered(x), np.full_like(y, 2)
        errors = 1 / 3 - np.eye(3)[y]
        scale = 2.5 if k in hostile else 1.0
        moves.append(scale * np.column_stack([errors.mean(0), (x.T @ errors / len(x)).T]))
    expected = -0.1 * np.average(moves, axis=0, weights=sizes)
    start = {"b": np.zeros(3, np.float32), "W": np.zeros((9, 3), np.float32)}
    history = fedax.run(
        fedax.FedAvg(),
        task(),
        solver=fedax.SGD(0.1),
        params=fedax.models.Affine(start["W"], start["b"]),
        channel=fedax.Channel(attack=attack),
        **ONE_STEP,
    )
    weights, bias = history.params
    np.testing.assert_allclose(bias, expected[:, 0], atol=1e-6)
    np.testing.assert_allclose(weights, expected[:, 1:].T, atol=1e-6)


def test_a_part_of_the_examples_is_poisoned():
    """Rounded up, the same part whoever else is there; the task of other runs stays as it is."""
    attack, whole = Backdoor(share=0.4, target=1, poisoned=0.5, patch=1, value=9.0), task()
    poisoned = attack.poison(whole, 0, 5).train
    for k, size in enumerate(SIZES.values()):
        before, after = whole.train.client(k), poisoned.client(k)
        is_changed = (before["x"] != after["x"]).any(1)
        assert is_changed.sum() == (-(-size // 2) if k in attack.members(5) else 0)
        assert (after["x"][is_changed, 8] == 9).all()
        assert (after["y"] == np.where(is_changed, 1, before["y"])).all()
        data = fedax.data.FederatedData([before], classes=3, holdout=TEST)
        alone = attack.poison(classification(data, fedax.models.Softmax(9, 3)), k, 5).train
        for name in "xy":
            np.testing.assert_array_equal(alone.arrays[name], after[name])
    for k, client in enumerate(CLIENTS.values()):
        np.testing.assert_array_equal(whole.train.client(k)["x"], client["x"])


@pytest.mark.parametrize("engine", [fedax.Simulation(), fedax.Eager()], ids=["compiled", "eager"])
def test_success_is_the_share_of_other_classes_taken_for_the_target(engine):
    weights = np.random.default_rng(1).normal(scale=0.3, size=(9, 3)).astype(np.float32)
    bias = np.array([0.3, 0.0, -0.2], np.float32)
    others = TEST["y"] != 2
    taken = (triggered(TEST["x"]) @ weights + bias).argmax(1) == 2
    assert 0 < taken[others].mean() != taken.mean() < 1
    history = fedax.run(
        fedax.FedAvg(),
        task(),
        params=fedax.models.Affine(weights, bias),
        channel=fedax.Channel(attack=Backdoor(share=0.0, target=2, patch=2, value=2.0)),
        observe=[fedax.observe.AttackSuccess(), fedax.observe.TestAccuracy()],
        rounds=0,
        engine=engine,
    )
    np.testing.assert_allclose(history.last("attack_success"), taken[others].mean(), rtol=1e-6)
    accuracy = ((TEST["x"] @ weights + bias).argmax(1) == TEST["y"]).mean()
    np.testing.assert_allclose(history.last("test_accuracy"), accuracy, rtol=1e-6)


def test_the_model_learns_the_backdoor_and_an_experiment_file_shows_it():
    text = """name = "backdoor"
rounds = 10
observe_every = 10
observe = ["attack_success", "test_accuracy"]
[task]
name = "digits"
clients = 10
partition = "iid"
[solver]
name = "sgd"
learning_rate = 0.1
[[algorithm]]
name = "fedavg"
[channel]
attack = { name = "backdoor", share = 0.2, target = 7 }
"""
    experiment = Experiment.parse(Experiment.parse(text).toml())
    assert experiment.channel.make() == fedax.Channel(attack=Backdoor(share=0.2, target=7))
    digits = fedax.tasks.digits("iid", clients=10)
    options = {"solver": fedax.SGD(0.1), "rounds": 10, "observe_every": 10}
    success = [
        fedax.run(
            fedax.FedAvg(),
            digits,
            channel=fedax.Channel(attack=Backdoor(share=share, target=7)),
            observe=[fedax.observe.AttackSuccess()],
            **options,
        ).last("attack_success")
        for share in (0.0, 0.2)
    ]
    assert success[0] < 0.05
    assert success[1] > 0.7


def test_tasks_and_runs_that_a_backdoor_does_not_fit_are_refused():
    def start(attack, observe=(), of=None):
        channel = None if attack is None else fedax.Channel(attack=attack)
        fedax.start(fedax.FedAvg(), of or task(), channel=channel, observe=list(observe))

    with pytest.raises(DataError, match=r"target=.*got 3; allowed: whole numbers from 0 to 2"):
        start(Backdoor(target=3))
    with pytest.raises(DataError, match=r"patch=.*got 3; allowed: a part of an example of shape"):
        start(Backdoor(patch=3))
    with pytest.raises(InvalidInput, match=r"poisoned=.*got 0"):
        Backdoor(poisoned=0.0)
    with pytest.raises(InvalidInput, match="one that predicts the classes 'y'"):
        start(Backdoor(), of=fedax.tasks.from_loss(lambda w, x: (w - x) ** 2, 1.0, clients=[[1.0]]))
    with pytest.raises(InvalidInput, match=r"AttackSuccess.*a run without a backdoor"):
        start(fedax.attacks.SignFlip(share=0.4), [fedax.observe.AttackSuccess()])
