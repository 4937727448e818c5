"""Tables of methods: paired tests against the best, forms, figures of runs in Python."""

import csv
import dataclasses
import io
import math

import numpy as np
import pytest
from typer.testing import CliRunner

import fedax
from fedax import cli
from fedax.core import Outcome
from fedax.experiments.results.store import RunDirectory
from fedax.results.record import to_csv as curves_csv
from fedax.results.tables.comparison import (
    Cell,
    ComparedColumn,
    MethodTable,
    compare_methods,
    differences_sheet,
    method_tables,
    to_csv,
    to_latex,
    to_markdown,
    to_text,
)
from fedax.results.tables.statistics import holm, paired_t
from fedax.results.tables.summary import COLUMNS, best, summarize
from samples import record

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


BEST, LEVEL_, WORSE = (
    0.8 + 0.01 * COMMON,
    0.799 + 0.01 * COMMON[::-1],
    0.7 + 0.01 * COMMON + 0.001 * RNG.normal(size=6),
)
RISEN = {"train_loss": np.array([2.0, 1.0, 3.0])}
RECORDS = [*runs("Best_1", BEST), *runs("Level", LEVEL_), *runs("Worse", WORSE)]


def test_tests_are_paired_and_corrected():
    column = compare_methods(RECORDS, "test_accuracy")
    assert column.title == "Test accuracy (%)"
    assert [column.cells[label].is_top for label in ("Best_1", "Level", "Worse")] == [
        True,
        True,
        False,
    ]
    assert column.cells["Best_1"].mean == pytest.approx(100 * BEST.mean())
    assert column.cells["Best_1"].deviation == pytest.approx(100 * BEST.std(ddof=1))
    raw = [float(paired_t(100 * (BEST - other)[None])[2][0]) for other in (LEVEL_, WORSE)]
    assert [column.differences[label].p for label in ("Level", "Worse")] == pytest.approx(holm(raw))
    assert column.differences["Worse"].effect.mean == pytest.approx(100 * (BEST - WORSE).mean())


def test_a_loss_is_better_below():
    ends = (("A", 0.5), ("B", 0.6))
    low = [
        record(label, "T", seed, losses=(2.0, loss + 0.01 * seed))
        for label, loss in ends
        for seed in range(4)
    ]
    column = compare_methods(low, "train_loss")
    assert [column.cells[label].is_top for label in "AB"] == [True, False]
    assert column.differences["B"].effect.mean == pytest.approx(0.1)


def test_diverged_runs_count_as_the_worst():
    bad = runs("Bad", BEST + 0.1)
    broken = {"test_accuracy": np.array([0.1, 0.5, np.nan]), "outcome": Outcome("non-finite", 1)}
    bad[0] = record("Bad", "T", 0, losses=(2.0, 1.0, np.nan), **broken)
    column = compare_methods([*RECORDS, *bad], "test_accuracy")
    assert column.cells["Bad"].lost == 1
    assert column.cells["Bad"].mean == pytest.approx(100 * np.mean([0.1, *(BEST + 0.1)[1:]]))


def test_a_method_that_diverged_keeps_its_values_and_is_not_marked():
    """It ended above its first loss, with the best accuracy."""
    risen = [dataclasses.replace(run, metrics=run.metrics | RISEN) for run in runs("Risen", BEST)]
    others = [*runs("Level", LEVEL_), *runs("Worse", WORSE)]
    column = compare_methods([*risen, *others], "test_accuracy")
    assert column.cells["Risen"].mean == pytest.approx(100 * BEST.mean())
    assert [cell.is_top for cell in column.cells.values()] == [False, True, False]
    accuracy = next(column for column in COLUMNS if column.metric == "test_accuracy")
    rows = summarize([*risen, *others])
    assert rows[0].values["test_accuracy"][0] == pytest.approx(BEST.mean())
    assert best(accuracy, rows) == {"Level"}


def test_single_runs_are_not_tested():
    (table,) = method_tables([*runs("A", [0.8]), *runs("B", [0.5])], metrics=["test_accuracy"])
    assert math.isnan(table.columns[0].differences["B"].p)
    assert [table.columns[0].cells[label].is_top for label in "AB"] == [True, False]
    assert "Nothing is tested" in table.note
    assert differences_sheet([*runs("A", [0.8]), *runs("B", [0.5])], {}) == []


def test_latex_has_booktabs_and_marks():
    (table,) = method_tables(RECORDS, metrics=["test_accuracy"])
    lines = to_latex(table).splitlines()
    assert lines[1:4] == [r"\begin{tabular}{lr}", r"\toprule", r"Algorithm & Test accuracy (\%) \\"]
    assert lines[5].startswith(r"Best\_1 & $\mathbf{80.")
    assert r" \pm " in lines[5]
    assert r"\mathbf" in lines[6]
    assert r"\mathbf" not in lines[7]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_a_metric_of_several_tasks_is_one_table():
    (table,) = method_tables([*RECORDS, *runs("Level", BEST, "U")], metrics=["test_accuracy"])
    assert [column.title for column in table.columns] == ["T", "U"]
    assert to_markdown(table).splitlines()[2] == "| Algorithm | T | U |"
    assert to_markdown(table).splitlines()[4].endswith("| - |")


def test_csv_names_units():
    rows = list(csv.DictReader(io.StringIO(to_csv(method_tables(RECORDS)))))
    worse = next(
        row
        for row in rows
        if (row["algorithm"], row["column (unit)"]) == ("Worse", "Test accuracy (%)")
    )
    assert float(worse["mean"]) == pytest.approx(100 * WORSE.mean(), rel=1e-6)
    assert worse["best"] == "0"
    assert float(worse["p (Holm)"]) < 0.05


def test_the_report_says_what_is_not_distinguishable():
    (sheet,) = differences_sheet(RECORDS, {})
    assert {(row[1], row[-1]) for row in sheet.rows if "points" in row[3]} == {
        ("Level", "not distinguishable"),
        ("Worse", "worse"),
    }


def test_the_command(tmp_path):
    directory = RunDirectory.create(tmp_path / "a", "Study")
    directory.take(dict(enumerate(RECORDS)))
    directory.close("finished")

    def call(*arguments):
        command = ["report", str(tmp_path / "a"), "--table", *arguments]
        return CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, command)

    assert "\\toprule" in call("latex").output
    assert "Worse" in call("text").output
    assert call("csv", "--out", str(tmp_path / "a.csv")).exit_code == 0
    assert (tmp_path / "a.csv").read_text().startswith("table,algorithm,column (unit)")
    assert "exclude each other" in call("csv", "--figures", "pdf").output
    assert "Did you mean 'latex'" in call("latec").output
    assert "Did you mean 'test_accuracy'" in call("text", "--metric", "test_acuracy").output
    assert "not distinguishable" in (tmp_path / "a" / "report.html").read_text()


@pytest.fixture(scope="module")
def histories():
    task = fedax.task("synthetic", clients=3)
    methods = {"FedAvg": fedax.FedAvg(), "FedProx": fedax.FedProx(mu=0.1)}
    return {
        name: fedax.run_grid([method], task, seed=[0, 1, 2], rounds=2)
        for name, method in methods.items()
    }


@pytest.mark.slow
def test_from_python(histories, tmp_path):
    assert fedax.table(histories, "latex").startswith("% Comparison")
    with pytest.raises(fedax.InvalidInput, match=r"got 'latx'.*Did you mean 'latex'"):
        fedax.table(histories, "latx")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pdf", "png"])
def test_figures_of_histories(histories, tmp_path, ending):
    pytest.importorskip("matplotlib")
    begin = {"pdf": b"%PDF", "png": b"\x89PNG"}[ending]
    assert fedax.compare(histories, tmp_path / f"a.{ending}").read_bytes().startswith(begin)
    histories["FedAvg"][0].report(tmp_path / f"b.{ending}")
    assert (tmp_path / f"b.{ending}").read_bytes().startswith(begin)


@pytest.mark.slow
def test_other_endings_are_refused(histories, tmp_path):
    with pytest.raises(
        fedax.InvalidInput,
        match=r"compare\(path=...\): got '.*a.txt'; allowed: names that end "
        r"in .html, .pdf",
    ):
        fedax.compare(histories, tmp_path / "a.txt")


@pytest.mark.slow
def test_data_frames(histories):
    pytest.importorskip("pandas")
    frame = histories["FedAvg"][0].to_pandas()
    assert list(frame.columns[:3]) == ["round", "seconds", "bits"]
    assert frame["train_loss"].tolist() == histories["FedAvg"][0].metrics["train_loss"].tolist()
    assert (frame["test_accuracy (fraction)"] <= 1).all()
    assert "test_accuracy" not in frame


def test_heads_of_files_name_units():
    run = record("FedAvg", "T", test_accuracy=np.array([0.1, 0.5, 0.6]))
    head = curves_csv([run]).splitlines()[0]
    assert head.startswith("task,algorithm,seed,draw,round,seconds,bits,train_loss")
    assert head.endswith("test_accuracy (fraction)")


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


def test_the_smallest_client_is_the_one_with_fewest_examples():
    runs = [record(client_accuracy_smallest=np.ones(3), client_accuracy_largest=np.ones(3))]
    names = ["client_accuracy_smallest", "client_accuracy_largest"]
    [table] = method_tables(runs, {}, names)
    assert [column.title for column in table.columns] == [
        "Client accuracy, client with fewest examples (%)",
        "Client accuracy, client with most examples (%)",
    ]


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [
        (0.0009, 0.00012, "0.00090 ± 0.00012"),
        (0.0011, 0.00012, "0.00110 ± 0.00012"),
        (2.5e5, 1.25e4, "250000 ± 12500"),
        (2.5e6, 1.25e5, "2.50e+06 ± 1.2e+05"),
        (0.0009, math.nan, "0.000900"),
    ],
)
def test_small_and_large_means_have_their_deviations(mean, deviation, text):
    table = MethodTable(
        "T", ["A"], [ComparedColumn("c", {"A": Cell(mean, deviation, 5, 0, 1.0)}, {})], ""
    )
    assert f"{text} *" in to_text(table)


def test_wide_letters_take_two_columns():
    table = MethodTable(
        "T",
        ["方法", "FedAvg"],
        [
            ComparedColumn(
                "c", dict.fromkeys(["方法", "FedAvg"], Cell(1.0, math.nan, 1, 0, 0.0)), {}
            )
        ],
        "",
    )
    lines = to_text(table).splitlines()[1:4]
    # the letters of the first method are as wide as four others; a column ends with room for a star
    assert lines == ["Algorithm       c", "方法       1.00", "FedAvg     1.00"]
