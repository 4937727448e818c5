"""Tables of methods: paired tests against the best, forms, figures of runs in Python."""

import csv
import dataclasses
import io

import numpy as np
import pytest

import commands
import fedax
from fedax.results.compare import compare_runs
from fedax.results.forms import format_tables
from fedax.results.page import describe_methods
from fedax.results.tables.statistics import effect_of, holm
from samples import made_up, record

RNG = np.random.default_rng(0)
COMMON = RNG.normal(size=6)


def runs(label, accuracies, task="T", **more):
    return [
        record(
            label,
            task,
            seed,
            losses=(2.0, 1.0, 0.5),
            test_accuracy=np.array([0.1, a / 2, a]),
            **more,
        )
        for seed, a in enumerate(accuracies)
    ]


BEST = 0.8 + 0.01 * COMMON
LEVEL_ = 0.799 + 0.01 * COMMON[::-1]
WORSE = 0.7 + 0.01 * COMMON + 0.001 * RNG.normal(size=6)
RISEN = {"train_loss": np.array([2.0, 1.0, 3.0])}
RECORDS = [*runs("Best_1", BEST), *runs("Level", LEVEL_), *runs("Worse", WORSE)]


def rows_of(records, metric):
    """The rows of a comparison by method."""
    rows = compare_runs(records, metrics=[metric]).to_dict("records")
    return {row["method"]: row for row in rows}


def table(records, form="text", reads=None, metrics=None):
    return format_tables(compare_runs(records, reads, metrics), form)


def test_tests_are_paired_and_corrected():
    """A twin of the best, whose numbers differ by rounding, is level, and no test counts it."""
    rows = rows_of([*RECORDS, *runs("Twin", BEST * (1 + 6e-8))], "test_accuracy")
    assert {row["column"] for row in rows.values()} == {"Test accuracy (%)"}
    assert [row["top"] for row in rows.values()] == [True, True, False, True]
    assert rows["Best_1"]["mean"] == pytest.approx(100 * BEST.mean())
    assert rows["Best_1"]["deviation"] == pytest.approx(100 * BEST.std(ddof=1), rel=1e-4)
    raw = [effect_of(100 * (BEST - other), "seeds").ahead for other in (LEVEL_, WORSE)]
    p = [row["p"] for row in rows.values()]
    assert p == pytest.approx([np.nan, *holm(raw), np.nan], rel=1e-3, nan_ok=True)
    assert rows["Worse"]["difference"] == pytest.approx(100 * (BEST - WORSE).mean())
    # of 54 examples, in single precision
    even = runs("A", np.float32([35, 34, 33]) / 54) + runs("B", np.float32([34, 34, 34]) / 54)
    assert not any(row["top"] for row in rows_of(even, "test_accuracy").values())


def test_a_method_that_diverged_keeps_its_values_and_is_not_marked():
    """It ended above its first loss, with the best accuracy."""
    risen = [dataclasses.replace(run, metrics=run.metrics | RISEN) for run in runs("Risen", BEST)]
    others = [*runs("Level", LEVEL_), *runs("Worse", WORSE)]
    rows = rows_of([*risen, *others], "test_accuracy")
    assert rows["Risen"]["mean"] == pytest.approx(100 * BEST.mean())
    assert [row["top"] for row in rows.values()] == [False, True, False]
    about = describe_methods(risen)["Risen"]
    assert (about["outcome"], about["ok"]) == ("diverged: above its initial loss", False)


def test_latex_has_booktabs_and_marks():
    lines = table(RECORDS, "latex", metrics=["test_accuracy"]).splitlines()
    assert lines[1:4] == [r"\begin{tabular}{lr}", r"\toprule", r"Algorithm & Test accuracy (\%) \\"]
    assert lines[5].startswith(r"Best\_1 & $\mathbf{80.")
    assert r"\mathbf" not in lines[7]
    assert "(paired by seeds, t-test, Holm, level 0.05)" in lines[-1]


def test_a_metric_of_several_tasks_is_one_table():
    records = [*RECORDS, *runs("Level", BEST, "U")]
    lines = table(records, "markdown", metrics=["test_accuracy"]).splitlines()
    assert lines[2] == "| Algorithm | T | U |"
    assert lines[4].endswith("| - |")


def test_csv_names_units():
    *_, worse = csv.DictReader(io.StringIO(table(RECORDS, "csv")))
    assert (worse["algorithm"], worse["column (unit)"]) == ("Worse", "Test accuracy (%)")
    assert float(worse["mean"]) == pytest.approx(100 * WORSE.mean(), rel=1e-6)
    assert float(worse["p (Holm)"]) < 0.05


def test_the_command(tmp_path):
    directory = made_up(tmp_path / "a", *RECORDS)
    directory.close("finished")

    def call(*arguments):
        command = ["report", str(tmp_path / "a"), "--table", *arguments]
        return commands.call(*command)

    assert "\\toprule" in call("latex").output
    assert "Worse" in call("text").output
    assert call("csv", "--out", str(tmp_path / "a.csv")).exit_code == 0
    assert (tmp_path / "a.csv").read_text().startswith("table,algorithm,column (unit)")
    assert "exclude each other" in call("csv", "--figures", "pdf").output
    assert "Did you mean 'latex'" in call("latec").output
    assert "Did you mean 'test_accuracy'" in call("text", "--metric", "test_acuracy").output


def test_scores_named_after_accuracy_are_no_percentages():
    def square(w, x):
        return (w - x) ** 2

    task = fedax.Task(
        0.0,
        square,
        fedax.FederatedData.from_arrays(
            [np.arange(3.0), np.arange(4.0)], test=[np.arange(3.0), np.ones(2)]
        ),
        scores={"accuracy_loss": square, "accuracy": lambda w, x: (x > w).astype(float)},
        modes={"accuracy_loss": "min"},
    )
    observe = [fedax.observe.CentralScore(score) for score in task.scores]
    history = fedax.run(fedax.FedAvg(), task, rounds=2, observe=observe)
    head, row = str(fedax.table({"FedAvg": [history]})).splitlines()[1:3]
    assert head.split("  ")[-2:] == ["Test accuracy (%)", "Test accuracy loss"]
    assert float(row.split()[-1]) == pytest.approx(history.last("test_accuracy_loss"), rel=0.01)
    frame = history.to_pandas()
    heads = ["round", "seconds", "bits", "test_accuracy (fraction)", "test_accuracy_loss"]
    assert [*frame] == heads
    assert frame["test_accuracy_loss"].tolist() == history.metrics["test_accuracy_loss"].tolist()
