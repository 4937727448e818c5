"""Availability: traces and days, cohorts smaller than asked, empty rounds."""

import dataclasses
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedax
from fedax.core import Availability, Daily, DataError, InvalidInput, SpecError, Trace
from fedax.core.scheduling.availability import AVAILABILITY
from fedax.core.scheduling.sampling import SAMPLING, Sampling
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import schedule_of
from marks import slow
from problems import quadratic, random_quadratic, vector

DRAWS = 3000


@pytest.fixture
def written(tmp_path):
    def write(text, **options):
        (tmp_path / "trace.csv").write_text(text)
        return Trace(str(tmp_path / "trace.csv"), **options)

    return write


def table(rule, rounds, clients):
    return np.array([rule.available(jax.random.key(0), t, clients) for t in range(rounds)])


@pytest.mark.slow
@settings(max_examples=25, deadline=None, database=None, derandomize=True)
@given(
    cuts=st.lists(st.integers(0, 40), min_size=2, max_size=8, unique=True).map(sorted),
    length=st.sampled_from(["0.1", "0.3", "0.7", "2.5", "1"]),
    repeat=st.booleans(),
)
def test_a_trace_is_who_is_there_when_a_round_begins(tmp_path_factory, cuts, length, repeat):
    """Against exact fractions; in tenths, which no binary number holds."""
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text(
        "to,device,from\n"
        + "".join(f"{b / 10},{i % 2},{a / 10}\n" for i, (a, b) in enumerate(pairs))
    )
    found, ends = (
        table(Trace(str(path), float(length), repeat), 45, 3),
        [Fraction(b, 10) for _, b in pairs],
    )
    period = -(-max(ends) // Fraction(length))
    for t in range(45):
        now = (t % period if repeat else t) * Fraction(length)
        own = [i % 2 for i, (a, b) in enumerate(pairs) if Fraction(a, 10) <= now < Fraction(b, 10)]
        assert found[t].tolist() == [k in own for k in range(3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"trace.csv, line 1: got .*; allowed: a header with device, from, to, each once"),
        ("device,from\n0,1\n", r"line 1: got .*; allowed: a header"),
        (
            "device,from,to\n",
            r"trace.csv: got no line below the header; allowed: at least one "
            r"interval",
        ),
        ("device,from,to\n0,1,2\n\n0,3\n", r"line 4: got .*; allowed: 3 values, as the header has"),
        (
            "device,from,to\n0,1,2\n0,nan,3\n",
            r"line 3, from: got 'nan'; allowed: finite numbers "
            r">= 0",
        ),
        ("device,from,to\n0,1,inf\n", r"line 2, to: got 'inf'; allowed: finite"),
        ("device,from,to\n0,-1,2\n", r"line 2, from: got '-1'; allowed: finite"),
        ("device,from,to\n0,1,1e999999\n", r"line 2, to: got '1e999999'; allowed: finite"),
        ("device,from,to\n0,3,2\n", r"line 2, to: got '2'; allowed: more than from, 3"),
        ("device,from,to\n0,2,2\n", r"line 2, to: got '2'; allowed: more than from, 2"),
        (
            "device,from,to\n-1,1,2\n",
            r"line 2, device: got '-1'; allowed: the number of a "
            r"client, from 0, or a name",
        ),
        (
            "device,from,to\n,1,2\n",
            r"line 2, device: got ''; allowed: the number of a client, "
            r"from 0, or a name",
        ),
        (
            "device,from,to\n0.5,1,2\n",
            r"line 2, device: got '0.5'; allowed: the number of a "
            r"client, from 0",
        ),
        (
            "device,from,to\n0,5,9\n1,0,9\n0,1,6\n",
            r"line 4: got '1 to 6, which overlaps with "
            r"line 2'; .* lie apart",
        ),
        ("device,from,to\n0,1,9\n0,2,3\n", r"line 3: got '2 to 3, which overlaps with line 2'"),
        ('device,from,to\n"0,1,2\n', r"got 'text that is no table"),
    ],
)
def test_bad_traces_are_refused(written, text, message):
    with pytest.raises(DataError, match=message):
        written(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Daily(fraction=0.0),
            r"Daily\(fraction=...\): got 0.0; allowed: numbers in "
            r"\(0, 1\]",
        ),
        (lambda: Daily(fraction=float("nan")), "fraction"),
        (lambda: Daily(period=0), r"Daily\(period=...\): got 0; allowed: whole numbers in \[1, "),
        (lambda: Daily(spread=1.5), r"Daily\(spread=...\): got 1.5; allowed: numbers in \[0, 1\]"),
        (lambda: Daily(seed=-1), r"Daily\(seed=...\): got -1"),
        (lambda: Trace("no/trace.csv"), r"a file at no/trace.csv that cannot be read"),
        (
            lambda: Trace("trace.csv", round_length=0),
            r"Trace\(round_length=...\): got 0; "
            r"allowed: finite numbers > 0",
        ),
        (
            lambda: fedax.Schedule(availability="weekly"),
            r"Schedule\(availability=...\): got "
            r"'weekly'; .* 'daily', 'trace'",
        ),
        (lambda: fedax.Schedule(availability="trace"), r"got 'trace'; allowed: 'trace' with file"),
        (
            lambda: fedax.Schedule(availability={"name": "daily", "share": 1}),
            r"parameters "
            r".*'fraction'.* of 'daily'",
        ),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_a_device_that_is_no_client_is_refused_with_its_line(written, tmp_path):
    written("device,from,to\n0,0,9\n5,0,9\n")
    text = (
        'name = "a"\n[task]\nname = "synthetic"\nclients = 5\n[[algorithm]]\nname = '
        '"fedavg"\n[schedule]\ncohort = 2\n'
    )
    text += (
        f'availability = {{name = "trace", file = "{tmp_path / "trace.csv"}", round_length = 2}}\n'
    )
    with pytest.raises(
        SpecError,
        match=r"trace.csv, line 3, device: got 5; allowed: numbers of "
        r"clients, 0 to 4",
    ):
        Experiment.parse(text).plan()
    again = Experiment.parse(Experiment.parse(text.replace("clients = 5", "clients = 6")).toml())
    again.plan()
    assert schedule_of(again.schedule).availability_rule == Trace(str(tmp_path / "trace.csv"), 2.0)
    with pytest.raises(SpecError, match=r"line 7: Daily\(period=...\): got 0"):
        Experiment.parse(
            text.partition("availability")[0] + 'availability = {name = "daily", period = 0}\n'
        )


def test_a_trace_is_read_anew(written):
    first = written("device,from,to\n0,0,1\n")
    given = {"availability": {"name": "trace", "file": first.file}}
    assert schedule_of(given).availability_rule == first
    assert schedule_of(given).availability_rule != written("device,from,to\n0,0,2\n")


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


def test_a_new_rule_is_one_class():
    @dataclasses.dataclass(frozen=True)
    class OneByOne(Availability):
        every: int = 1

        def available(self, key, round, clients):
            return jnp.arange(clients, dtype=jnp.int32) == round // self.every % clients

    try:
        a, b = random_quadratic(clients=3)
        a[:] = np.eye(3)
        schedule = fedax.Schedule(
            availability={"name": "one_by_one", "every": 2}, steps=1, batch_size="full"
        )
        for rounds in (1, 3):
            found = fedax.run(
                fedax.FedAvg(),
                quadratic(a, b),
                schedule=schedule,
                solver=fedax.SGD(1.0),
                rounds=rounds,
            )
            np.testing.assert_allclose(vector(found), b[rounds // 2], atol=1e-14, rtol=0)
    finally:
        del AVAILABILITY["one_by_one"]


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
    there, weights = np.array(there, bool), None
    if sampling == "weights":
        # of those there, 1 only fills up
        sampling, weights = "uniform", jnp.asarray([9.0, 0, 9, 1, 3, 9])
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


def test_a_rule_of_ones_own_loses_those_who_are_not_there():
    @dataclasses.dataclass(frozen=True)
    class FirstOnes(Sampling):
        def draw(self, key, offsets, cohort):
            return jnp.arange(cohort, dtype=jnp.int32), cohort

    try:
        rows = drawn(
            fedax.Schedule(cohort=4, sampling=FirstOnes()), np.array([0, 1, 0, 1, 1, 1], bool)
        )
        assert set(map(tuple, rows)) == {(1, 3)}
    finally:
        del SAMPLING["first_ones"]


TRACE = "device,from,to\n1,0,1\n0,2,4\n2,2,3\n3,2,3\n1,3,4\n"


@pytest.mark.parametrize("weights", ["size", "equal"])
@pytest.mark.parametrize(
    "engine", [fedax.Simulation, slow(fedax.Eager)], ids=lambda engine: engine.__name__
)
def test_small_cohorts_are_weighted_by_those_who_came(written, engine, weights):
    """Of everyone and with cohorts of 3: after a full step of rate 1 the model is the weighted mean
    of theirs."""
    centres = [np.array([1.0, 2.0]), np.array([5.0]), np.array([0.0, 3.0, 3.0]), np.array([-4.0])]
    task = fedax.tasks.from_loss(lambda w, x: (w - x) ** 2 / 2, 7.0, clients=centres)
    there = [[1], [], [0, 2, 3], [0, 1], []]
    expected, sizes = [], np.array([len(c) for c in centres]) if weights == "size" else np.ones(4)
    for own in there:
        new = (
            sum(sizes[k] * centres[k].mean() for k in own) / sum(sizes[k] for k in own)
            if own
            else expected[-1]
        )
        expected.append(new)
    for cohort in (None, 3):
        options = {"cohort": cohort, "steps": 1, "batch_size": "full", "weights": weights}
        schedule, done = fedax.Schedule(availability=written(TRACE), **options), None
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
        assert done.notes["available"].tolist() == done.notes["drawn"].tolist() == [1, 0, 3, 2, 0]
        assert (done.bits.up > 0).tolist() == [bool(own) for own in there]


@pytest.mark.slow
def test_empty_rounds_and_draws_are_the_same_on_every_engine(written, tmp_path):
    """Two phases: a round in which nobody is there changes nothing; the engines agree on every
    other. MPI has a test of its own."""
    method = fedax.FedDANE(mu=0.1)
    a, b = random_quadratic(clients=4)
    schedule = fedax.Schedule(availability=written(TRACE), cohort=2, steps=2, batch_size="full")
    options = {"solver": fedax.SGD(0.05), "schedule": schedule, "observe": []}
    one, two, four = (fedax.run(method, quadratic(a, b), rounds=t, **options) for t in (1, 2, 4))
    pairs = zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True)
    assert all(np.array_equal(x, y) for x, y in pairs)
    assert two.bits.up[1] == 0
    assert four.notes["drawn"].tolist() == [1, 0, 2, 2]
    pytest.importorskip("flwr", reason="flwr is not installed")
    from fedax.flower import Assignment, in_process

    assignments = [Assignment(method, options["solver"], schedule)]
    for engine in (fedax.Eager(), in_process(quadratic(a, b), tmp_path, assignments)):
        other = fedax.run(method, quadratic(a, b), rounds=4, engine=engine, **options)
        np.testing.assert_allclose(vector(other), vector(four), rtol=1e-12, atol=1e-12)
        for name in ("available", "drawn"):
            assert np.array_equal(other.notes[name], four.notes[name])
