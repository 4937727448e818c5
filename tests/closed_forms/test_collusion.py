"""Attacks in which hostile clients agree on what they send, against NumPy: what they agree on, and
that it arrives."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedax
from fedax.attacks import ALIE, IPM, MinMax
from fedax.core import Algorithm, Citation, Upload, hyper
from problems import quadratic, regression, vector
from transcription import LR, ROUNDS, SCHEDULE, SEED, P, World

KNOWN = np.array([True, True, False, True, True, False, True, False])


def alie(known, n, m, z=0.0):
    s = np.floor(n / 2 + 1) - m
    z = z or np.clip(stats.norm.ppf(np.clip((n - m - s) / (n - m), 0, 1)), 0, 3)
    return known.mean(0) - z * known.std(0)


def halving(passes):
    """The largest number that passes, as the paper looks for it."""
    low = 0.0
    high = 1.0
    while passes(high):
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


def directions(known):
    mean = known.mean(0)
    return {"std": -known.std(0), "unit": -mean / np.linalg.norm(mean), "sign": -np.sign(mean)}


def squares(rows, point):
    return ((rows - point) ** 2).sum(1)


def min_max(known, direction="std"):
    p = directions(known)[direction]
    mean = known.mean(0)
    most = max(squares(known, x).max() for x in known)
    return mean + halving(lambda g: squares(known, mean + g * p).max() <= most) * p


def agreed(attack, changes, known=KNOWN, n=8, m=3):
    flags = jnp.asarray(known), jnp.int32(n), jnp.int32(m)
    return np.asarray(attack.agree(jnp.asarray(changes), *flags))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 1e-25, 1e25])
def test_what_they_agree_on(size):
    """In float32, where squares of the smallest and the largest do not fit; rows that are not known
    do not count, whatever they are."""
    changes = np.random.default_rng(0).normal(0.3, 1, (8, 6)).astype(np.float32)
    known = changes[KNOWN].astype(float)
    changes = np.float32(size) * changes
    changes[~KNOWN] = np.float32(3e38)
    expected = {
        ALIE(): alie(known, 8, 3),
        ALIE(z=1.5): alie(known, 8, 3, 1.5),
        IPM(epsilon=0.7): -0.7 * known.mean(0),
        **{MinMax(direction=name): min_max(known, name) for name in ("std", "unit", "sign")},
    }
    for attack, change in expected.items():
        np.testing.assert_allclose(
            agreed(attack, changes) / np.float32(size), change, rtol=2e-4, atol=2e-5
        )


def test_equal_changes_leave_no_room():
    """Without a spread every attack but IPM sends the change itself."""
    changes = np.tile(np.float32([1.0, -2.0, 0.0]), (8, 1))
    for attack in (ALIE(z=1.5), MinMax(), MinMax(direction="unit")):
        np.testing.assert_allclose(agreed(attack, changes), changes[0], atol=1e-6)


@pytest.mark.parametrize(
    ("n", "m", "z"), [(50, 12, stats.norm.ppf(24 / 38)), (51, 25, 3.0), (8, 1, 0.0), (9, 6, 3.0)]
)
def test_the_papers_z(n, m, z):
    """For one hostile client of 8 the supporters are more than half, so that z would be below 0; a
    majority needs none."""
    if (n, m) == (51, 25):
        z = stats.norm.ppf(25 / 26)
    changes = np.random.default_rng(1).normal(size=(8, 5))
    expected = changes.mean(0) - z * changes.std(0)
    found = agreed(ALIE(), changes, np.full(8, True), n, m)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def trajectory(rule, attack, agree, rounds=ROUNDS):
    """Rounds in which the hostile clients of a cohort replace their models."""
    world = World()
    w = World().start
    members = attack.members(5)
    for cohort in world.cohorts()[:rounds]:
        models = np.array([world.sgd(k, w)[0] for k in cohort])
        hostile = np.isin(cohort, members)
        known = (models - w)[hostile if attack.knows == "hostile" else ~hostile]
        if hostile.any():
            models[hostile] = w + agree(known, len(cohort), hostile.sum())
        w = rule(models, P[cohort] / P[cohort].sum())
    return w


RULES = {
    fedax.FedAvg(): lambda models, weights: weights @ models,
    fedax.CoordinateMedian(): lambda models, weights: np.median(models, axis=0),
}
ENGINES = {
    "sequential": fedax.Simulation(devices=1),
    "mesh": fedax.Simulation(chunk=2, devices=2),
    "eager": fedax.Eager(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "knows"), [("sequential", "honest"), ("mesh", "hostile"), ("eager", "honest")]
)
def test_it_arrives(engine, knows):
    """Three of five clients in a round, two of the five hostile, unequal sizes."""
    rounds = 2 if engine == "eager" else ROUNDS
    attacks = {
        ALIE(share=0.4, seed=2, z=1.5, knows=knows): lambda known, n, m: alie(known, n, m, 1.5),
        IPM(share=0.4, seed=2, epsilon=2.0, knows=knows): lambda known, n, m: -2 * known.mean(0),
    }
    for method, rule in RULES.items():
        for attack, agree in attacks.items():
            found = fedax.run(
                method,
                regression(),
                solver=fedax.SGD(LR),
                schedule=SCHEDULE,
                rounds=rounds,
                seed=SEED,
                engine=ENGINES[engine],
                channel=fedax.Channel(attack=attack),
            )
            expected = trajectory(rule, attack, agree, rounds)
            np.testing.assert_allclose(vector(found), expected, rtol=0, atol=1e-12)
            assert found.bits.up.tolist() == [3 * 4 * 64] * rounds  # the reference is not sent


class Pair(Algorithm):
    """Sends a model with its reference, a second vector, a number and a weight of its own; NaN at
    one client."""

    bad: int = hyper(-1, doc="that client")

    citation = Citation(paper="A test", read=())

    def round(self, fed, state):
        model, direction, number = fed.average(self.work, fed.everyone, state)
        fed.log(direction=direction, number=number)
        return model

    def work(self, client, w):
        x = jnp.where(client.index == self.bad, jnp.nan, client.minimize(start=w))
        weight = jnp.asarray(client.index, w.dtype)
        return Upload((x, w - 2 * x, weight), weight=weight, reference=w)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mesh", "eager"])
@pytest.mark.parametrize("bad", [False, True])
def test_every_vector_is_replaced_by_itself(engine, bad):
    """Own weights and single numbers stay; a client whose upload is not finite counts nowhere."""
    rng = np.random.default_rng(3)
    b = rng.normal(size=(6, 3))
    hostile = np.isin(np.arange(6), IPM(share=0.34, seed=1).members(6))
    weights = np.arange(6.0)
    left_out = int(np.flatnonzero(~hostile)[-1]) if bad else -1
    found = fedax.run(
        Pair(bad=left_out),
        quadratic(np.tile(np.eye(3), (6, 1, 1)), b),
        solver=fedax.SGD(1.0),
        schedule=fedax.Schedule(steps=1, batch_size="full"),
        rounds=1,
        engine=ENGINES[engine],
        channel=fedax.Channel(attack=IPM(share=0.34, seed=1, epsilon=2.0)),
        on_bad_client="drop",
    )
    start = np.zeros(3)
    models = b.copy()
    directions = start - 2 * b
    counts = np.arange(6) != left_out
    known = counts & ~hostile
    models[hostile] = start - 2 * (b[known].mean(0) - start)
    directions[hostile] = -2 * directions[known].mean(0)
    weights = weights[counts] / weights[counts].sum()
    np.testing.assert_allclose(vector(found), weights @ models[counts], atol=1e-12)
    np.testing.assert_allclose(
        found.logged["direction"][0], weights @ directions[counts], atol=1e-12
    )
    np.testing.assert_allclose(
        found.logged["number"][0], weights @ np.arange(6.0)[counts], atol=1e-12
    )


def test_a_cohort_without_anybody_to_know():
    """All clients hostile, or a single one that knows itself alone, which sends its own change."""
    b = np.array([[1.0, 2.0], [3.0, -1.0]])
    task = quadratic(np.tile(np.eye(2), (2, 1, 1)), b)
    options = {
        "solver": fedax.SGD(1.0),
        "schedule": fedax.Schedule(steps=1, batch_size="full"),
        "rounds": 1,
    }
    for attack in (MinMax(share=1.0), ALIE(share=0.5, knows="hostile", z=2.0)):
        found = fedax.run(fedax.FedAvg(), task, channel=fedax.Channel(attack=attack), **options)
        np.testing.assert_allclose(vector(found), b.mean(0), atol=1e-12)
