"""Robust aggregation and attacks against NumPy: the rules, the promises under attack, the attacks
on the way."""

import numpy as np
import pytest

import fedax
from fedax.communication.attacks import LabelFlip, Noise, SignFlip
from fedax.communication.codecs import Quantizer
from fedax.experiments.config.experiment import Experiment
from problems import quadratic, regression, vector
from transcription import LR, ROUNDS, SCHEDULE, SEED, P, World

ONE = fedax.Simulation(devices=1)


def run(method, engine=ONE, rounds=ROUNDS, **options):
    options = {"task": regression(), "solver": fedax.SGD(LR), "schedule": SCHEDULE} | options
    return fedax.run(
        method, rounds=rounds, seed=SEED, observe_every=rounds, engine=engine, **options
    )


def trajectory(rule, attack=lambda k, model, w: model, rounds=ROUNDS):
    """Rounds of a rule over the models, their weights and the one they start at."""
    world = World()
    w = world.start
    for cohort in world.cohorts()[:rounds]:
        w = rule(
            np.array([attack(k, world.sgd(k, w)[0], w) for k in cohort]),
            P[cohort] / P[cohort].sum(),
            w,
        )
    return w


def median(models, weights, w):
    return np.median(models, axis=0)


def trimmed(models, weights, w):
    return np.sort(models, axis=0)[1:-1].mean(0)  # a third of three at either end


def krum(f, m):
    def rule(models, weights, w):
        n = len(models)
        scores = []
        for i in range(n):
            others = sorted(np.sum((models[i] - models[j]) ** 2) for j in range(n) if j != i)
            scores.append(sum(others[: max(n - f - 2, 1)]))
        return models[np.argsort(np.round(scores, 12), kind="stable")[:m]].mean(0)

    return rule


def weiszfeld(models, weights, w):
    v = w
    for _ in range(4):
        pull = weights / np.maximum(1e-6, np.linalg.norm(models - v, axis=1))
        v = pull @ models / pull.sum()
    return v


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (fedax.CoordinateMedian(), median),
        (fedax.TrimmedMean(beta=1 / 3), trimmed),
        (fedax.Krum(), krum(0, 1)),
        (fedax.Krum(selected=2), krum(0, 2)),
        (fedax.GeometricMedian(iterations=4), weiszfeld),
    ],
    ids=["median", "trimmed", "krum", "multi-krum", "geometric"],
)
def test_rules_against_numpy(method, rule):
    np.testing.assert_allclose(vector(run(method)), trajectory(rule), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_krum_with_hostile_clients(size):
    """A score sums over the n - f - 2 closest models, however close all models are."""
    b = np.random.default_rng(4).normal(size=(7, 3))
    f = 2
    m = 3
    picked = [krum(g, m)(b, None, 0) for g in (f, 0, -f)]  # f matters, and so does the score
    assert all(np.abs(one - picked[0]).max() > 0.1 for one in (*picked[1:], b[:m].mean(0)))
    found = run(
        fedax.Krum(byzantine=f, selected=m),
        task=quadratic(np.tile(np.eye(3), (7, 1, 1)), size * b),
        solver=fedax.SGD(1.0),
        schedule=fedax.Schedule(steps=1, batch_size="full"),
        rounds=1,
    )
    np.testing.assert_allclose(vector(found), size * picked[0], rtol=0, atol=size * 1e-13)


def vardi_zhang(models, shares, nu):
    """Returns Weiszfeld's step from 0, or that of eq. (2.6) where it makes the smoothed objective
    smaller, and whether it does."""
    near = np.linalg.norm(models, axis=1) <= nu
    pull = shares / np.maximum(nu, np.linalg.norm(models, axis=1))
    plain = pull @ models / pull.sum()
    rest = pull[~near] @ models[~near]  # R of the paper
    part = min(1.0, shares[near].sum() / np.linalg.norm(rest))
    escaped = (1 - part) * rest / pull[~near].sum()

    def objective(v):
        return sum(
            share * (d if d > nu else d**2 / (2 * nu) + nu / 2)
            for share, d in zip(shares, np.linalg.norm(models - v, axis=1), strict=True)
        )

    better = objective(escaped) < objective(plain)
    return escaped if better else plain, better


@pytest.mark.parametrize(
    ("others", "escapes"),
    [([[6, -4], [8, -4], [6, 7]], True), ([[-4, 1], [2, 4], [7, 4]], False)],
)
def test_a_geometric_median_that_starts_at_a_model(others, escapes):
    """One model is at the start and one at distance nu from it."""
    b = np.array([[1, 0], [0, 0], *others], float)
    sizes = [1, 2, 1, 3, 1]
    nu = 1.0
    expected, better = vardi_zhang(b, np.array(sizes) / sum(sizes), nu)
    assert better == escapes
    found = run(
        fedax.GeometricMedian(iterations=1, nu=nu),
        task=quadratic(np.tile(np.eye(2), (5, 1, 1)), b, sizes),
        solver=fedax.SGD(1.0),
        schedule=fedax.Schedule(steps=1, batch_size="full"),
        rounds=1,
    )
    np.testing.assert_allclose(vector(found), expected, rtol=0, atol=1e-13)


def hostile_task(clients=20, dim=5):
    """Bowls around points near (1, ..., 1), whose mean is that point."""
    rng = np.random.default_rng(1)
    b = rng.normal(size=(clients, dim)) * 0.1
    return quadratic(np.tile(np.eye(dim), (clients, 1, 1)), 1 + b - b.mean(0)), np.ones(dim)


ATTACKS = {"sign flip": SignFlip(share=0.2, scale=10.0), "noise": Noise(share=0.2, std=200.0)}
HOLD = [
    fedax.CoordinateMedian(),
    fedax.TrimmedMean(beta=0.2),
    fedax.Krum(byzantine=4),
    fedax.Krum(byzantine=4, selected=14),
    fedax.GeometricMedian(),
]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_a_fifth_of_hostile_clients(attack):
    """The mean ends far away (with flips it moves from the optimum for ever); every robust rule
    ends as near as the data spread."""
    task, optimum = hostile_task()
    schedule = fedax.Schedule(steps=1, batch_size="full")
    channel = fedax.Channel(attack=ATTACKS[attack])

    def distance(method, channel=channel):
        found = run(
            method, task=task, schedule=schedule, solver=fedax.SGD(0.5), rounds=40, channel=channel
        )
        return np.linalg.norm(vector(found) - optimum)

    assert distance(fedax.FedAvg(), None) < 1e-6
    assert distance(fedax.FedAvg()) > 50
    for method in HOLD if attack == "sign flip" else HOLD[:3:2]:
        assert distance(method) < 0.4, method


@pytest.mark.slow
def test_sign_flips_and_noise_on_the_way():
    """The hostile clients' changes are turned round; honest ones and what goes down stay as they
    are. Noise has its deviation."""
    attack = SignFlip(share=0.4, scale=3.0, seed=2)
    members = set(attack.members(5).tolist())
    assert len(members) == 2
    for engine, rounds in ((fedax.Simulation(chunk=2, devices=2), ROUNDS), (fedax.Eager(), 1)):
        expected = trajectory(
            lambda models, weights, w: weights @ models,
            lambda k, model, w: w - 3 * (model - w) if k in members else model,
            rounds,
        )
        found = run(fedax.FedAvg(), engine, rounds, channel=fedax.Channel(attack=attack))
        np.testing.assert_allclose(vector(found), expected, rtol=0, atol=1e-12)
    task = fedax.Task(np.zeros(4000), lambda w, x: 0 * (x + w.sum()), [[1.0], [1.0]])
    noise = fedax.Channel(attack=Noise(share=1.0))
    noisy = vector(
        run(fedax.FedAvg(), task=task, rounds=1, schedule=fedax.Schedule(), channel=noise)
    )
    assert abs(noisy.std() - np.sqrt(0.5)) < 5 * np.sqrt(0.5 / 8000)


def test_an_attack_is_coded_like_any_message():
    attack = SignFlip(share=0.4, seed=2)
    code = Quantizer(b=8, step=0.02, rounding="floor")
    members = set(attack.members(5).tolist())
    s = float(np.float32(0.02))

    def sent(k, model, w):
        return w + np.clip(np.floor((w - model if k in members else model - w) / s), -128, 127) * s

    expected = trajectory(lambda models, weights, w: weights @ models, sent)
    history = run(fedax.FedAvg(), channel=fedax.Channel(up=code, attack=attack))
    np.testing.assert_allclose(vector(history), expected, rtol=0, atol=1e-12)
    assert history.bits.up.tolist() == [3 * (32 + 4 * 8)] * ROUNDS


def labels(params, examples):
    """Bowls around the labels."""
    return (params - examples["y"].astype(params.dtype)) ** 2 / 2


def test_flipped_labels():
    """Labels 0, 1, 2 of three classes at five clients: the hostile ones learn 2 - y, test examples
    stay."""
    own = np.array([0, 1, 2, 2, 2])
    attack = LabelFlip(share=0.4, classes=3)
    clients = [{"y": np.array([y] * 2)} for y in own]
    task = fedax.Task(np.zeros(()), labels, fedax.FederatedData.from_arrays(clients, test=clients))
    flipped = own.copy()
    flipped[attack.members(5)] = 2 - own[attack.members(5)]
    options = {
        "task": task,
        "solver": fedax.SGD(1.0),
        "schedule": fedax.Schedule(steps=1, batch_size="full"),
        "rounds": 1,
    }
    found = run(
        fedax.FedAvg(),
        channel=fedax.Channel(attack=attack),
        observe=[fedax.observe.TestLoss()],
        **options,
    )
    np.testing.assert_allclose(vector(found), flipped.mean(), atol=1e-14)
    assert flipped.mean() != own.mean()
    np.testing.assert_allclose(
        found.metrics["test_loss"][-1], np.mean((flipped.mean() - own) ** 2) / 2, atol=1e-14
    )


def test_experiment_files_attack():
    text = """name = "a"\nrounds = 1\n[task]\nname = "digits"\nclients = 5\n[[algorithm]]\nname = "krum"\nbyzantine = 1
[channel]\nattack = { name = "sign_flip", share = 0.2, scale = 4 }\n"""
    experiment = Experiment.parse(Experiment.parse(text).toml())
    assert experiment.channel.make().attack == SignFlip(share=0.2, scale=4.0)
