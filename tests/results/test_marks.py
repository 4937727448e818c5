"""What tables of methods mark, leave out and print: untested, diverged and unbalanced runs."""

import csv
import io
import math

import numpy as np
import pytest

import fedax
from fedax.core import InvalidInput, Outcome
from fedax.results.record import Record
from fedax.results.tables.comparison import (
    FORMS,
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
from fedax.results.tables.statistics import holm, mean_text
from problems import regression

OK, NON_FINITE = Outcome(), Outcome("non-finite", 1)


def run(label, seed, last, first=2.0, draw=0, metric="train_loss", task="T", outcome: Outcome = OK):
    rounds, zeros, curve = np.array([0, 5]), np.zeros(2), np.array([first, last])
    return Record(task, label, seed, draw, rounds, zeros, zeros, {metric: curve}, outcome)


def lost(label, seed, **more):
    return run(label, seed, math.nan, outcome=NON_FINITE, **more)


def marked(records, metric="train_loss", read="last"):
    cells = compare_methods(records, metric, read).cells
    return {label for label, cell in cells.items() if cell.is_top}


def lines_of(records, form):
    """The rows of the single table by method, in a form."""
    lines = FORMS[form](method_tables(records, metrics=["train_loss"])).splitlines()
    return {
        label: line for line in lines for label in "ABC" if line.lstrip("| ")[:2] == f"{label} "
    }


SINGLE = [run("A", 0, 0.1), run("B", 0, 0.9), run("C", 0, 1.9)]


def test_of_single_runs_only_the_best_is_marked():
    assert marked(SINGLE) == {"A"}
    marks = {"text": " *", "markdown": "**", "latex": "mathbf"}
    for form, mark in marks.items():
        lines = lines_of(SINGLE, form)
        assert {label for label, line in lines.items() if mark in line} == {"A"}
        assert len(lines) == 3
    rows = list(csv.DictReader(io.StringIO(to_csv(method_tables(SINGLE)))))
    assert [row["best"] for row in rows] == ["1", "0", "0"]
    # the difference is a number, but nothing says how sure it is
    assert [row["p (Holm)"] for row in rows] == ["", "", ""]
    assert float(rows[1]["difference to best (worse is positive)"]) == pytest.approx(0.8)
    assert "Bold: the best. Nothing is tested" in method_tables(SINGLE)[0].note


def test_equal_means_of_single_runs_are_all_the_best():
    assert marked([*SINGLE, run("D", 0, 0.1)]) == {"A", "D"}


def test_seeds_that_the_methods_do_not_share_are_not_compared():
    a = [run("A", s, 0.1 + 0.01 * s) for s in range(5)]
    b = [run("B", s, 1.9 + 0.01 * s) for s in range(5, 8)]
    column = compare_methods([*a, *b], "train_loss")
    assert (column.common, column.differences) == (0, {})
    assert not any(cell.is_top for cell in column.cells.values())
    assert [column.cells[label].runs for label in "AB"] == [5, 3]
    (table,) = method_tables([*a, *b])
    assert "over 3 to 5 runs" in table.note
    assert "Nothing is compared: the methods have no seed and draw in common." in table.note
    assert "Bold" not in table.note


def test_a_single_common_seed_is_not_tested():
    records = [*(run("A", s, 0.1 + 0.01 * s) for s in range(5)), run("B", 3, 1.9)]
    column = compare_methods(records, "train_loss")
    assert marked(records) == {"A"}
    assert math.isnan(column.differences["B"].p)
    assert column.cells["A"].mean == pytest.approx(0.13)
    (table,) = method_tables(records)
    assert "4 of 5 runs of A left out" in table.note
    assert "Nothing is tested" in table.note
    assert differences_sheet(records, {}) == []


def test_a_method_that_diverged_in_all_runs_has_no_number_and_no_mark():
    """Not even where the initial loss, as which it counts, is no worse than what others reach."""
    records = [
        *(lost("A", s, first=2.0) for s in range(3)),
        *(run("B", s, 2.0 - 1e-7 * s) for s in range(3)),
        *(run("C", s, 3.0 + 0.01 * s, first=1.0) for s in range(3)),
    ]
    assert "A" not in marked(records)
    for form in ("text", "markdown", "latex"):
        line = lines_of(records, form)["A"]
        assert "diverged" in line
        assert not any(mark in line for mark in ("*", "mathbf", "textbf", "2.0"))
    row = next(csv.DictReader(io.StringIO(to_csv(method_tables(records)))))
    assert (row["mean"], row["best"], row["diverged"], row["runs"]) == ("", "0", "3", "3")


def test_of_diverged_methods_none_is_the_best():
    every = [lost(label, s) for label in "AB" for s in range(3)]
    assert marked(every) == set()
    assert "Bold" not in method_tables(every)[0].note
    assert marked([*every, run("C", 0, 1.0), run("C", 1, 1.1), run("C", 2, 1.2)]) == {"C"}
    # in runs of one seed too
    assert marked([lost("A", 0), run("B", 0, 1.0)]) == {"B"}
    # a mean over initial losses that were never finite
    nothing = [lost(label, s, first=math.nan) for label in "AB" for s in range(3)]
    assert marked(nothing) == set()
    assert "never" not in to_text(method_tables(nothing)[0])


def test_some_diverged_runs_are_counted_beside_the_mean():
    records = [
        *(run("A", s, 0.1 + 0.01 * s) for s in range(3)),
        *(run("B", s, 0.11 + 0.01 * s) for s in range(2)),
        lost("B", 2),
    ]
    lines = {form: lines_of(records, form)["B"] for form in ("text", "markdown", "latex")}
    assert lines["text"].split(maxsplit=1)[1] == "0.7 ± 1.1 (1 of 3 diverged) *"
    assert "**0.7 ± 1.1 (1 of 3 diverged)**" in lines["markdown"]
    assert r"$\mathbf{0.7 \pm 1.1}$ (1 of 3 diverged)" in lines["latex"]
    # one that never gets there has no mean number of rounds, and is still counted
    (table,) = method_tables(records, {"T": "rounds_to_0.5"})
    assert "never (1 of 3 diverged)" in to_text(table)


def test_methods_that_never_get_there_are_not_marked():
    records = [run(label, s, 1.0 + 0.1 * s) for label in "AB" for s in range(3)]
    assert marked(records, read="rounds_to_0.01") == set()
    reached = [*records, *(run("C", s, 0.001) for s in range(3))]
    assert marked(reached, read="rounds_to_0.01") == {"C"}
    # if none always gets there, the best is the one that mostly does
    mostly = [*records, run("C", 0, 0.001), run("C", 1, 0.001), run("C", 2, 1.0)]
    assert compare_methods(mostly, "train_loss", "rounds_to_0.01").differences["A"].best == "C"


def unbalanced():
    """B is better in every pair; A has few runs on the hard draws of the data."""
    levels = {"A": (1.2, 3.3, 3.4), "B": (1.0, 3.0, 3.1)}
    return [
        run(label, seed, levels[label][draw] + 0.01 * seed, first=9.0, draw=draw)
        for label in "AB"
        for draw in range(3)
        for seed in range(5)
        if label == "B" or draw == 0 or seed == 0
    ]


def test_the_best_is_chosen_on_the_runs_that_all_methods_have():
    column = compare_methods(unbalanced(), "train_loss")
    assert set(column.differences) == {"A"}
    assert column.differences["A"].effect.mean == pytest.approx((0.2 + 0.3 + 0.3) / 3)
    assert marked(unbalanced()) == {"B"}
    # draws count alike in the means, as in the test: their difference is what was tested
    a, b = (column.cells[label] for label in "AB")
    assert a.mean - b.mean == pytest.approx(column.differences["A"].effect.mean)
    assert (a.runs, b.runs, a.left_out, b.left_out, column.common) == (7, 7, 0, 8, 7)
    (table,) = method_tables(unbalanced())
    assert "8 of 15 runs of B left out" in table.note
    assert [row["left out"] for row in csv.DictReader(io.StringIO(to_csv([table])))] == ["0", "8"]


def test_all_methods_share_the_runs_of_a_column():
    """A third method that lacks a seed takes it from all, whichever of them is the best."""
    records = [
        run(label, s, level + 0.01 * s)
        for label, level in (("A", 0.1), ("B", 0.5))
        for s in range(4)
    ]
    records += [run("C", s, 0.3 + 0.01 * s * s) for s in (0, 1, 3)]
    column = compare_methods(records, "train_loss")
    assert {cell.runs for cell in column.cells.values()} == {3}
    assert {d.effect.units for d in column.differences.values()} == {3}
    assert column.cells["A"].mean == pytest.approx(0.1 + 0.01 * 4 / 3)
    raw = [d.effect.ahead for d in column.differences.values()]
    assert [d.p for d in column.differences.values()] == holm(raw)


def test_the_note_names_the_columns_that_leave_runs_out():
    full = [run("A", s, 0.1, task=task) for task in ("T", "U") for s in range(3)]
    part = [run("B", s, 0.2, task="T") for s in range(3)] + [run("B", 1, 0.2, task="U")]
    (table,) = method_tables([*full, *part], metrics=["train_loss"])
    assert "U: 2 of 3 runs of A left out" in table.note
    assert "T: " not in table.note


def test_a_metric_without_a_direction_shows_what_diverged():
    def gap(label, seed, **more):
        return run(label, seed, 0.5, metric="own", **more)

    good = [gap("A", s) for s in range(3)]
    bad = [run("B", s, math.nan, metric="own", outcome=NON_FINITE) for s in range(3)]
    (table,) = method_tables([*good, *bad], metrics=["own"])
    assert to_text(table).splitlines()[3].split() == ["B", "diverged"]
    some = [*good, *bad[:1], gap("B", 1), gap("B", 2)]
    (table,) = method_tables(some, metrics=["own"])
    assert "1 of 3 diverged" in to_text(table)
    assert not any(cell.is_top for cell in table.columns[0].cells.values())


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [
        (0.0012446, 1e-5, "0.001245 ± 0.000010"),
        (1235.5678, 1.0, "1235.6 ± 1.0"),
        (88.98, 1.16, "89.0 ± 1.2"),
        (94.1, 0.0996, "94.10 ± 0.10"),
        (0.75, 1.08, "0.8 ± 1.1"),
        (0.5, 0.0, "0.500 ± 0.000"),
        # below the seventh digit of single precision
        (0.5, 2e-9, "0.500000 ± 2.0e-09"),
        (0.5, math.nan, "0.500"),
        (1234.5678, math.nan, "1235"),
        (-1e-3, 0.4, "0.00 ± 0.40"),
        (0.0, math.nan, "0.00"),
        (3.1e-7, 1e-8, "3.10e-07 ± 1.0e-08"),
        (3.14159e-7, math.nan, "3.14e-07"),
        (0.0, 2e-7, "0 ± 2.0e-07"),
        (2.5e9, 1e8, "2.50e+09 ± 1.0e+08"),
    ],
)
def test_decimals_follow_the_deviation(mean, deviation, text):
    assert mean_text(mean, deviation) == text
    column = ComparedColumn("c", {"A": Cell(mean, deviation, 5, 0, math.nan)}, {})
    table = MethodTable("T", ["A"], [column], "")
    assert to_text(table).splitlines()[2] == f"A          {text}"
    assert f"| {text} |" in to_markdown(table)


def test_exponents_are_powers_of_ten_in_latex():
    cells = {"A": Cell(3.1e-7, 1e-8, 3, 0, 1.0), "B": Cell(-2.5e9, math.nan, 1, 0, math.nan)}
    lines = to_latex(
        MethodTable("T", ["A", "B"], [ComparedColumn("c", cells, {})], "")
    ).splitlines()
    assert lines[5] == r"A & $\mathbf{3.10 \times 10^{-7} \pm 1.0 \times 10^{-8}}$ \\"
    assert lines[6] == r"B & $-2.50 \times 10^{9}$ \\"


@pytest.fixture(scope="module")
def histories():
    # seeds differ by their cohorts
    schedule = fedax.Schedule(cohort=1, batch_size=2)
    return fedax.run_grid(
        [fedax.FedAvg()], regression(), seed=[3, 4, 5], rounds=2, schedule=schedule
    )


@pytest.mark.slow
def test_histories_are_paired_by_their_seeds(histories):
    losses = [history.last("train_loss") for history in histories]
    assert len(set(losses)) == 3
    same = {"A": histories, "B": histories[::-1]}
    for row in csv.DictReader(io.StringIO(fedax.table(same, "csv"))):
        assert (row["low"], row["high"]) in (("", ""), ("0", "0")), "B has the runs of A"
    # other seeds are not compared with each other
    text = fedax.table({"A": histories[:2], "B": histories[2]})
    assert "Nothing is compared" in text
    text = fedax.table({"A": histories, "B": histories[1:]})
    assert "1 of 3 runs of A left out" in text
    a, b = (line.split(maxsplit=1)[1] for line in text.splitlines()[2:4])
    assert a == b


def test_lists_with_a_seed_twice_are_paired_by_place(histories):
    """Runs on several tasks, say: then the seeds at a place have to be equal."""
    first, second, _ = histories
    text = fedax.table({"A": [first, first, second], "B": [first, first]})
    assert "1 of 3 runs of A left out" in text
    for show in (fedax.table, fedax.compare):
        with pytest.raises(
            InvalidInput,
            match=rf"{show.__name__}\(histories=\.\.\.\): got run 2 of 'B' with seed 4, and of 'A' "
            "with seed 3",
        ):
            show({"A": [first, first], "B": [first, second]})
