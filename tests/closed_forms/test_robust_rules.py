"""Bulyan, centered clipping, bucketing and nearest-neighbour mixing against NumPy."""

import jax
import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput
from fedax.utils.random import stream
from problems import quadratic, regression, vector
from transcription import LR, ROUNDS, SCHEDULE, SEED, World

STEP = {"solver": fedax.SGD(1.0), "schedule": fedax.Schedule(steps=1, batch_size="full")}
"""One gradient step of size 1 on a bowl around b_k ends at b_k."""
ENGINES = {
    "sequential": fedax.Simulation("sequential", devices=1),
    "mesh": fedax.Simulation("chunked", 2, 2),
    "eager": fedax.Eager(),
}


def run(method, b, rounds=1, seed=SEED, **options):
    """Rounds of a method on bowls around the rows of b, all of size 1."""
    task = quadratic(np.tile(np.eye(b.shape[1]), (len(b), 1, 1)), b)
    return fedax.run(method, task, rounds=rounds, seed=seed, **(STEP | options))


def bulyan(models, f):
    left, picked = list(range(len(models))), []
    while len(picked) < max(len(models) - 2 * f, 1):
        scores = []
        for i in left:
            others = sorted(np.sum((models[i] - models[j]) ** 2) for j in left if j != i)
            scores.append(sum(others[: max(len(left) - f - 2, 1)]))
        picked.append(left.pop(int(np.argmin(np.round(scores, 12)))))
    chosen = models[picked]
    order = np.argsort(np.abs(chosen - np.median(chosen, axis=0)), axis=0, kind="stable")
    return np.take_along_axis(chosen, order, 0)[: max(len(picked) - 2 * f, 1)].mean(0)


def mixed(models, f):
    """Nearest-neighbour mixing."""
    rows = []
    for x in models:
        nearest = np.argsort(((models - x) ** 2).sum(1), kind="stable")[: len(models) - f]
        rows.append(models[nearest].mean(0))
    return np.array(rows)


def clipped(changes, center, tau, iterations=1):
    for _ in range(iterations):
        offsets = changes - center
        lengths = np.linalg.norm(offsets, axis=1, keepdims=True)
        center = center + (offsets * np.minimum(1, tau / np.maximum(lengths, 1e-300))).mean(0)
    return center


@pytest.mark.parametrize(("many", "f"), [(7, 1), (8, 1), (11, 2), (4, 0)])
def test_bulyan(many, f):
    b = np.random.default_rng(many).normal(size=(many, 3))
    assert f == 0 or np.abs(bulyan(b, f) - bulyan(b, 0)).max() > 0.01
    found = run(fedax.Bulyan(byzantine=f), b)
    np.testing.assert_allclose(vector(found), bulyan(b, f), atol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_bulyan_with_a_client_left_out(engine):
    """On a cohort that is smaller than its capacity: f stays, and n is what arrived."""
    b = np.random.default_rng(9).normal(size=(12, 3))
    b[3] = 1e200  # its squares are infinite in the loss, and the client is left out
    method = fedax.Bulyan(byzantine=2)
    found = run(Broken(method), b, engine=ENGINES[engine], on_bad_client="drop")
    np.testing.assert_allclose(vector(found), bulyan(np.delete(b, 3, 0), 2), atol=1e-12)


def Broken(method):
    """The method, with a client whose model is NaN."""

    class WithBroken(type(method)):
        def train(self, client, w):
            upload = super().train(client, w)
            value = jax.numpy.where(client.index == 3, jax.numpy.nan, upload.value)
            return fedax.Upload(value, reference=w)

    return WithBroken(byzantine=method.byzantine)


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (fedax.CoordinateMedian(mixing=2), lambda x: np.median(x, axis=0)),
        (fedax.TrimmedMean(beta=0.25, mixing=3), lambda x: np.sort(x, axis=0)[2:-2].mean(0)),
    ],
)
def test_mixing(method, rule):
    """Eight models, some of them equal."""
    b = np.random.default_rng(5).normal(size=(8, 3))
    b[6] = b[1]
    f = method.mixing
    assert np.abs(rule(mixed(b, f)) - rule(b)).max() > 0.01
    np.testing.assert_allclose(vector(run(method, b)), rule(mixed(b, f)), atol=1e-13)


@pytest.mark.parametrize("many", [6, 7])
def test_buckets(many):
    """The median of means of pairs, drawn anew in every round; of seven clients one is alone."""
    b = np.random.default_rng(many).normal(size=(many, 3))
    for seed in (1, 2):
        root = jax.random.fold_in(jax.random.key(seed), 1)
        order = np.asarray(jax.random.permutation(stream(root, "server", 0, "buckets"), many))
        # the client with the lowest number in the permutation comes first
        ranked = b[np.argsort(order)]
        means = np.array([ranked[i : i + 2].mean(0) for i in range(0, many, 2)])
        found = vector(run(fedax.CoordinateMedian(bucket=2), b, seed=seed))
        np.testing.assert_allclose(found, np.median(means, axis=0), atol=1e-13)


def test_one_bucket_is_the_mean():
    """Of a cohort, with padding behind it; with clients of unequal sizes the weights add up."""
    b = np.random.default_rng(2).normal(size=(5, 3))
    mean = vector(run(fedax.CoordinateMedian(bucket=5), b))
    np.testing.assert_allclose(mean, b.mean(0), atol=1e-13)
    sizes = [1, 2, 3, 4, 5]
    task = quadratic(np.tile(np.eye(3), (5, 1, 1)), b, sizes)
    weighted = fedax.GeometricMedian(bucket=1, nu=1e30)
    found = vector(fedax.run(weighted, task, rounds=1, **STEP))
    np.testing.assert_allclose(found, np.array(sizes) @ b / 15, atol=1e-12)
    found = vector(fedax.run(fedax.GeometricMedian(bucket=5, nu=1e30), task, rounds=1, **STEP))
    np.testing.assert_allclose(found, b.mean(0), atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("momentum", "form"), [(0.0, "as_written"), (0.7, "as_written"), (0.7, "as_released")]
)
def test_centered_clipping(engine, momentum, form):
    """Three of five clients in a round, unequal sizes: the center is that of the round before, and
    a client's momentum that of the last time it was drawn."""
    world, tau, rounds = World(), 0.05, 2 if engine == "eager" else ROUNDS
    w, center, momenta, bound = world.start, np.zeros(4), {}, 0
    for cohort in world.cohorts()[:rounds]:
        for k in cohort:
            change = world.sgd(k, w)[0] - w
            if k in momenta:
                factor = 1 - momentum if form == "as_written" else 1
                change = factor * change + momentum * momenta[k]
            momenta[k] = change
        changes = np.array([momenta[k] for k in cohort])
        bound += (np.linalg.norm(changes - center, axis=1) > tau).sum()
        center = clipped(changes, center, tau, 2)
        w = w + center
    assert bound > 1  # clipping acts
    found = fedax.run(
        fedax.CenteredClip(tau=tau, iterations=2, momentum=momentum, form=form),
        regression(),
        solver=fedax.SGD(LR),
        schedule=SCHEDULE,
        rounds=rounds,
        seed=SEED,
        engine=ENGINES[engine],
    )
    np.testing.assert_allclose(vector(found), w, rtol=0, atol=1e-12)


def test_a_hostile_client_moves_the_center_by_its_part_of_tau():
    b = np.random.default_rng(3).normal(size=(10, 3)) * 0.01
    attack = fedax.attacks.Noise(share=0.1, std=1e6)
    quiet, loud = (
        vector(run(fedax.CenteredClip(tau=0.5), b, channel=channel))
        for channel in (None, fedax.Channel(attack=attack))
    )
    assert 0.045 < np.linalg.norm(loud - quiet) < 0.055  # 0.5 / 10, and its own missing change


def test_refusals():
    for method, schedule, words in (
        (fedax.Bulyan(byzantine=1), {"cohort": 6}, "got 1; allowed: 0 to 0 with 6 clients"),
        (fedax.Krum(byzantine=2, bucket=2), {}, "got 2; allowed: 0 to 1 with 5 clients"),
        (fedax.TrimmedMean(mixing=5, bucket=2), {}, "got 5; allowed: 0 to 4 with 5 vectors"),
        (fedax.CenteredClip(mixing=10), {}, "got 10; allowed: 0 to 9 with 10 vectors"),
    ):
        with pytest.raises(InvalidInput, match=words):
            run(method, np.zeros((10, 2)), schedule=fedax.Schedule(steps=1, **schedule))
    with pytest.raises(InvalidInput, match="bucket"):
        fedax.Krum(bucket=0)
