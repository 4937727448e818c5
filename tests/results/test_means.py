"""Means over runs of unequal length, and over runs that diverged, wherever they are formed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedax.core import Outcome
from fedax.results import Record
from fedax.results.compare import compare_runs
from fedax.results.drawing import mean_curve
from fedax.results.figures import draw_curves
from fedax.results.forms import cell_text, format_tables
from fedax.results.frame import curves_frame, describe_early_ends
from fedax.results.page import Page, render

LOST = Outcome("diverged", 2)


OK = Outcome()


def run(label="A", seed=0, rounds=30, outcome=OK, start=0.1, end=0.9, every=1, draw=0):
    """An accuracy that rises in a line over 30 rounds, cut after some."""
    t = np.arange(0, rounds + 1, every)
    values = start + (end - start) * t / 30
    metrics = {"test_accuracy": values, "train_loss": 2.0 - values}
    return Record("T", label, seed, draw, t, t * 0.5, t * 640, metrics, outcome)


def mean(runs, metric="test_accuracy", worst=np.nan, x="seconds"):
    frame = curves_frame(runs)
    return mean_curve(frame.assign(x=frame[x], value=frame[metric], worst=worst))


def test_a_run_that_diverged_early_has_no_mean_without_a_worst_value():
    runs = [run(), run(seed=2, rounds=3, outcome=LOST)]
    assert "the 1 that diverged count" in describe_early_ends(runs)
    assert mean(runs)["mean"][4:].isna().all()
    alone = mean(runs[1:], worst=0.1)["mean"]
    assert alone.tolist() == runs[1].metrics["test_accuracy"].tolist()


def test_bands_are_deviations_within_the_range_of_the_values():
    values = np.array([[1.0, 1.0, -1.0], [2.0, 1.0, -1.0], [3.0, 10.0, -10.0], [2.0, 4.0, -4.0]])
    t = np.arange(3)
    runs = [
        Record("T", "A", i, 0, t, t * 0.5, t * 64, {"other": each}, OK)
        for i, each in enumerate(values)
    ]
    found = mean(runs, "other")
    deviation = np.sqrt(2 / 3), np.sqrt((9 + 9 + 36) / 3)
    np.testing.assert_allclose(found["mean"], [2, 4, -4])
    np.testing.assert_allclose(found["low"], [2 - deviation[0], 1, -4 - deviation[1]])
    np.testing.assert_allclose(found["high"], [2 + deviation[0], 4 + deviation[1], -1])
    assert mean(runs[:1], "other")[["low", "high"]].isna().all(axis=None), "no band for a run"


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
    found = mean(runs, worst=0.0)
    assert found.index[-1] == max(int(r.rounds[-1]) for r in runs)
    assert (np.diff(found.index) > 0).all()
    np.testing.assert_allclose(found["x"], found.index * 0.5, rtol=1e-12)
    for t in found.index:
        values = [
            each.metrics["test_accuracy"][list(each.rounds).index(min(t, each.rounds[-1]))]
            for each in runs
        ]
        gone = [t > each.rounds[-1] and each.outcome == LOST for each in runs]
        expected = np.mean(np.where(gone, 0.0, values)) if not all(gone) else np.nan
        np.testing.assert_allclose(found["mean"][t], expected)


def test_tables_reports_figures_and_comparisons_count_it_as_the_worst():
    good = [run("B", seed=s, start=0.2) for s in (0, 1, 2)]
    runs = [run(seed=0), run(seed=1), run(seed=2, rounds=3, outcome=LOST), *good]
    expected = (0.9 + 0.9 + 0.1) / 3
    (row,) = rows_of(runs, "A")
    np.testing.assert_allclose(row["mean"], 100 * expected)
    assert cell_text(row).endswith("(1 of 3 diverged)")
    assert "the 1 that diverged count" in render(Page("t", "s", runs))
    picture = next(each for each in draw_curves(runs) if each.name == "test_accuracy")
    line = next(each for each in picture.figure.axes[0].lines if each.get_label() == "A")
    assert line.get_xdata()[-1] == 30
    np.testing.assert_allclose(line.get_ydata()[-1], 100 * expected)
    assert "the 1 that diverged count" in picture.note


def test_interrupted_runs_are_left_out_and_counted():
    runs = [run(), *(run(label, 2, 3, Outcome("interrupted", 3)) for label in "AB")]
    told = format_tables(compare_runs(runs), "text")
    assert told.splitlines()[2].endswith(" 90.0")
    assert "1 interrupted run of A left out. 1 interr" in told
    picture = draw_curves(runs)[1]
    assert picture.figure.axes[0].lines[0].get_ydata()[-1] == 90
    assert "Interrupted runs are left out" in picture.note


def test_bands_are_over_draws_of_the_data_as_in_tables():
    keys = (0, 0), (5, 0), (5, 1), (9, 0)
    runs = [run(seed=seed, end=draw + seed, draw=draw) for draw, seed in keys]
    (row,) = rows_of(runs, "A")
    assert 100 * mean(runs)["low"][30] == pytest.approx(row["mean"] - row["deviation"])


@pytest.mark.parametrize("read", ["last", "best"])
def test_a_value_that_is_not_finite_is_never_left_out(read):
    broken = run(seed=1)
    broken.metrics["test_accuracy"][20:] = np.nan
    others = [run("B", seed=seed, start=0.2) for seed in (0, 1)]
    (row,) = rows_of([run(seed=0), broken, *others], "A", read)
    np.testing.assert_allclose(row["mean"], 100 * (0.9 + 0.1) / 2)
    assert row["lost"] == 1
    (alone,) = rows_of([broken], "A", read)
    assert not np.isfinite(alone["mean"])


def rows_of(runs, label, read="last"):
    """The row of a method's accuracy in a comparison."""
    rows = compare_runs(runs, {"T": read}, ["test_accuracy"]).to_dict("records")
    return [row for row in rows if row["method"] == label]
