"""Means over runs of unequal length, and over runs that diverged, wherever they are formed."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedax.core import Outcome
from fedax.experiments.results.figures import curves
from fedax.results import Page, Record, render
from fedax.results.tables.means import aligned, curves_of, describe_early_ends, mean_position
from fedax.results.tables.numbers import Results
from fedax.results.tables.summary import format_row_value, summarize

LOST = Outcome("diverged", 2)


OK = Outcome()


def run(label="A", seed=0, rounds=30, outcome=OK, start=0.1, end=0.9, every=1):
    """An accuracy that rises in a line over 30 rounds, cut after some."""
    t = np.arange(0, rounds + 1, every)
    values = start + (end - start) * t / 30
    metrics = {"test_accuracy": values, "train_loss": 2.0 - values}
    return Record("T", label, seed, 0, t, t * 0.5, t * 640, metrics, outcome)


def test_seeds_that_ended_at_30_30_and_3_rounds():
    runs = [run(seed=0), run(seed=1, end=0.7), run(seed=2, rounds=3, outcome=LOST)]
    rounds, _ = aligned(runs)
    assert rounds.tolist() == list(range(31))
    found = curves_of(runs, "test_accuracy")
    np.testing.assert_allclose(found[2, :4], runs[2].metrics["test_accuracy"])
    assert (found[2, 4:] == 0.1).all(), "the worst accuracy of the task"
    assert (curves_of(runs, "train_loss")[2, 4:] == 1.9).all(), "the worst loss"
    np.testing.assert_allclose(mean_position(runs, [r.seconds for r in runs]), rounds * 0.5)
    assert describe_early_ends("A", runs) == (
        "A: 1 of 3 diverged (after 3 rounds) and counts as the worst from there."
    )


def test_a_run_that_stopped_early_keeps_its_last_value():
    runs = [run(), run(seed=1, rounds=12, outcome=Outcome("stopped", 11))]
    found = curves_of(runs, "test_accuracy")
    assert (found[1, 12:] == runs[1].metrics["test_accuracy"][-1]).all()
    assert (
        describe_early_ends("A", runs)
        == "A: 1 of 2 ended after 12 rounds and keeps the last value."
    )
    assert not describe_early_ends("A", runs[:1])


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.sampled_from([1, 2, 3]), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=80, deadline=None)
def test_mean_curves_reach_the_end_of_the_longest_run(shapes):
    runs = [
        run(
            seed=i,
            rounds=length - length % every or every,
            every=every,
            outcome=LOST if lost else Outcome(),
        )
        for i, (length, every, lost) in enumerate(shapes)
    ]
    rounds, at = aligned(runs)
    assert rounds[-1] == max(int(r.rounds[-1]) for r in runs)
    assert (np.diff(rounds) > 0).all()
    values, positions = (
        curves_of(runs, "test_accuracy"),
        mean_position(runs, [r.seconds for r in runs]),
    )
    assert values.shape == (len(runs), len(rounds))
    np.testing.assert_allclose(positions, rounds * 0.5, rtol=1e-12)
    for one, row, own in zip(runs, values, at, strict=True):
        seen = rounds <= one.rounds[-1]
        np.testing.assert_array_equal(row[seen], one.metrics["test_accuracy"][own[seen]])


def test_tables_reports_figures_and_comparisons_count_it_as_the_worst():
    good = [run("B", seed=s, start=0.2) for s in (0, 1, 2)]
    runs = [run(seed=0), run(seed=1), run(seed=2, rounds=3, outcome=LOST), *good]
    mean = (0.9 + 0.9 + 0.1) / 3
    row = next(row for row in summarize(runs) if row.label == "A")
    np.testing.assert_allclose(row.values["test_accuracy"][0], mean)
    from fedax.results.tables.summary import COLUMNS

    accuracy = next(c for c in COLUMNS if c.metric == "test_accuracy")
    assert format_row_value(row, accuracy).endswith("(1 of 3 as the worst)")
    results = Results(runs)
    np.testing.assert_allclose(
        list(results.of("T", "A", "test_accuracy", "last").values()), [90, 90, 10]
    )
    assert results.lost("T", "A", "test_accuracy", "last") == (1, 3)
    data = json.loads(
        render(Page("t", "s", runs)).split('id="data"')[1].split(">", 1)[1].split("</script>")[0]
    )
    (task,) = data["tasks"]
    assert task["algorithms"][0]["x"]["rounds"][-1] == 30
    np.testing.assert_allclose(
        task["algorithms"][0]["series"]["test_accuracy"]["mean"][-1], mean, rtol=1e-4
    )
    assert "A: 1 of 3 diverged (after 3 rounds)" in task["caption"]
    chart = next(chart for chart in curves(runs) if chart.name == "test_accuracy")
    line = next(series for series in chart.panels[0].series if series.label == "A")
    assert line.x[-1] == 30
    np.testing.assert_allclose(line.y[-1], 100 * mean)
    assert "A: 1 of 3 diverged" in chart.note


@pytest.mark.parametrize("read", ["last", "best"])
def test_a_value_that_is_not_finite_is_never_left_out(read):
    broken = run(seed=1)
    broken.metrics["test_accuracy"][20:] = np.nan
    rows = summarize([run(seed=0), broken, run("B", start=0.2)], read)
    np.testing.assert_allclose(rows[0].values["test_accuracy"][0], (0.9 + 0.1) / 2)
    assert rows[0].lost["test_accuracy"] == 1
    alone = summarize([broken])[0]
    assert not np.isfinite(alone.values["test_accuracy"][0])
