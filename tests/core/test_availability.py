"""Availability: traces and days, cohorts smaller than asked, empty rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.core import Daily, Trace
from marks import slow
from problems import quadratic, random_quadratic, vector

DRAWS = 3000


def table(rule, rounds, clients):
    return np.array([rule.available(jax.random.key(0), t, clients) for t in range(rounds)])


@pytest.mark.parametrize("repeat", [False, True])
def test_a_trace_is_who_is_there_in_a_round(repeat):
    intervals = [(1, 0, 2), (0, 1, 3), (1, 4, 6), (3, 2, 3)]
    found = table(Trace(*zip(*intervals, strict=True), repeat), 14, 5)
    for t in range(14):
        now = t % 6 if repeat else t
        own = {k for k, first, end in intervals if first <= now < end}
        assert set(np.flatnonzero(found[t])) == own


@pytest.mark.parametrize("first", [[0], [0.5, 1]])
def test_a_trace_has_whole_numbers_for_each_interval(first):
    with pytest.raises(TypeError):
        Trace([0, 1], first, [4, 5])


def test_a_day_is_a_share_of_the_rounds_of_every_client():
    found = table(Daily(0.25, period=8, spread=1.0, seed=3), 24, 200)
    assert np.array_equal(found[:8], found[8:16])
    assert (found[:8].sum(0) == 2).all()
    assert found[:8].any(1).all()  # somewhere it is day
    alike = table(Daily(0.25, period=8, spread=0.0), 8, 5)
    assert alike.tolist() == [[True] * 5] * 2 + [[False] * 5] * 6
    half = table(Daily(0.25, period=8, spread=0.5), 8, 200)
    days = {tuple(np.flatnonzero(column)) for column in half.T}
    # two rounds from hour 0 on, for clients whose hour in round 0 is 0, 1, 2 or 3
    assert days == {(0, 1), (0, 7), (6, 7), (5, 6)}


SIZES = np.array([1, 2, 3, 4, 5, 6])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])


def drawn(schedule, there, weights=None):
    offsets = jnp.asarray(OFFSETS, jnp.int32)
    draw = jax.jit(jax.vmap(lambda key: schedule.draw(key, offsets, weights, jnp.asarray(there))))
    ids, counts = draw(jax.random.split(jax.random.key(5), DRAWS))
    return [row[:n].tolist() for row, n in zip(np.asarray(ids), np.asarray(counts), strict=True)]


def shares(rows):
    return np.bincount(np.concatenate([np.asarray(row, int) for row in rows]), minlength=6) / DRAWS


@pytest.mark.parametrize("sampling", ["uniform", "proportional_without_replacement", "weights"])
@pytest.mark.parametrize("there", [[0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 1, 0], [0] * 6])
def test_cohorts_are_drawn_among_those_who_are_there(sampling, there):
    there = np.array(there, bool)
    weights = None
    if sampling == "weights":
        # of those there, 1 only fills up
        sampling = "uniform"
        weights = jnp.asarray([9.0, 0, 9, 1, 3, 9])
    rows = drawn(fedax.Schedule(cohort=2, sampling=sampling), there, weights)
    assert all(len(row) == len(set(row)) == min(2, there.sum()) for row in rows)
    assert not shares(rows)[~there].any()
    if there.sum() < 3:
        return
    if weights is not None:
        assert set(map(tuple, map(sorted, rows))) == {(3, 4)}
        return
    p = there * (SIZES if sampling != "uniform" else np.ones(6))
    p = p / p.sum()
    expected = [
        p[k] + sum(p[j] * p[k] / (1 - p[j]) for j in np.flatnonzero(p) if j != k) for k in range(6)
    ]
    np.testing.assert_allclose(shares(rows), expected, atol=5 * np.sqrt(0.25 / DRAWS))


def test_draws_with_replacement_and_lots_see_only_those_who_are_there():
    there = np.array([1, 0, 0, 1, 0, 1], bool)
    rows = drawn(fedax.Schedule(cohort=4, sampling="proportional"), there)
    assert {len(row) for row in rows} == {4}
    np.testing.assert_allclose(
        shares(rows), 4 * there * SIZES / SIZES[there].sum(), atol=5 * np.sqrt(4 * 0.25 / DRAWS)
    )
    assert set(
        map(len, drawn(fedax.Schedule(cohort=4, sampling="proportional"), np.zeros(6, bool)))
    ) == {0}
    rows = drawn(fedax.Schedule(cohort=3, sampling="poisson"), there)
    np.testing.assert_allclose(shares(rows), there * 0.5, atol=5 * np.sqrt(0.25 / DRAWS))


TRACE = Trace([1, 0, 2, 3, 1], [0, 2, 2, 2, 3], [1, 4, 3, 3, 4])


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["size", "equal"])
@pytest.mark.parametrize(
    "engine", [fedax.Simulation, slow(fedax.Eager)], ids=lambda engine: engine.__name__
)
def test_small_cohorts_are_weighted_by_those_who_came(engine, weights):
    """Of everyone and with cohorts of 3: after a full step of rate 1 the model is the weighted mean
    of theirs."""
    centres = [np.array([1.0, 2.0]), np.array([5.0]), np.array([0.0, 3.0, 3.0]), np.array([-4.0])]
    task = fedax.Task(7.0, lambda w, x: (w - x) ** 2 / 2, centres)
    there = [[1], [], [0, 2, 3], [0, 1], []]
    expected = []
    sizes = np.array([len(c) for c in centres]) if weights == "size" else np.ones(4)
    for own in there:
        new = (
            sum(sizes[k] * centres[k].mean() for k in own) / sum(sizes[k] for k in own)
            if own
            else expected[-1]
        )
        expected.append(new)
    for cohort in (None, 3):
        options = {"cohort": cohort, "steps": 1, "batch_size": "full", "weights": weights}
        schedule = fedax.Schedule(**options, conditions={"availability": TRACE})
        done = None
        for t, value in enumerate(expected, 1):
            more = {
                "solver": fedax.SGD(1.0),
                "schedule": schedule,
                "engine": engine(),
                "observe": [],
                "resume": done,
            }
            done = fedax.run(fedax.FedAvg(), task, rounds=t, **more)
            assert done.outcome.ok
            np.testing.assert_allclose(done.params, value, rtol=1e-14)
        assert done.logged["available"].tolist() == done.logged["drawn"].tolist() == [1, 0, 3, 2, 0]
        assert (done.bits.up > 0).tolist() == [bool(own) for own in there]


@pytest.mark.slow
def test_empty_rounds_and_draws_are_the_same_on_every_engine(tmp_path):
    """Two phases: a round in which nobody is there changes nothing; the engines agree on every
    other. MPI has a test of its own."""
    method = fedax.FedDANE(mu=0.1)
    a, b = random_quadratic(clients=4)
    schedule = fedax.Schedule(
        cohort=2, steps=2, batch_size="full", conditions={"availability": TRACE}
    )
    options = {"solver": fedax.SGD(0.05), "schedule": schedule, "observe": []}
    one, two, four = (fedax.run(method, quadratic(a, b), rounds=t, **options) for t in (1, 2, 4))
    pairs = zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True)
    assert all(np.array_equal(x, y) for x, y in pairs)
    assert two.bits.up[1] == 0
    assert four.logged["drawn"].tolist() == [1, 0, 2, 2]
    pytest.importorskip("flwr", reason="flwr is not installed")
    from fedax.flower import Assignment, in_process

    assignments = [Assignment(method, options["solver"], schedule)]
    for engine in (fedax.Eager(), in_process(quadratic(a, b), tmp_path, assignments)):
        other = fedax.run(method, quadratic(a, b), rounds=4, engine=engine, **options)
        np.testing.assert_allclose(vector(other), vector(four), rtol=1e-12, atol=1e-12)
        for name in ("available", "drawn"):
            assert np.array_equal(other.logged[name], four.logged[name])
