"""What tables of methods mark, leave out and print: untested, diverged and unbalanced runs."""

import csv
import io
import math

import numpy as np
import pandas as pd
import pytest

import fedax
from fedax.core import InvalidInput, Outcome
from fedax.results.compare import EMPTY, compare_runs
from fedax.results.forms import format_tables, note_of, tables_of
from fedax.results.page import describe_methods
from fedax.results.record import Record
from fedax.results.tables.statistics import effect_of, mean_text
from problems import quadratic, random_quadratic, regression

OK = Outcome()
NON_FINITE = Outcome("non-finite", 1)


def run(label, seed, last, first=2.0, draw=0, metric="train_loss", task="T", outcome: Outcome = OK):
    rounds = np.array([0, 5])
    zeros = np.zeros(2)
    curve = np.array([first, last])
    return Record(task, label, seed, draw, rounds, zeros, zeros, {metric: curve}, outcome)


def lost(label, seed, **more):
    return run(label, seed, math.nan, outcome=NON_FINITE, **more)


def rows_of(records, metric="train_loss", read="last"):
    """The rows of a comparison by method."""
    rows = compare_runs(records, {"T": read}, [metric]).to_dict("records")
    return {row["method"]: row for row in rows}


def marked(records, metric="train_loss", read="last"):
    return {label for label, row in rows_of(records, metric, read).items() if row["top"]}


def note(records, **more):
    (rows,) = tables_of(compare_runs(records, **more)).values()
    return note_of(rows)


def text(records, form="text", **more):
    return format_tables(compare_runs(records, **more), form)


def lines_of(records, form):
    """The rows of the single table by method, in a form."""
    lines = text(records, form, metrics=["train_loss"]).splitlines()
    return {
        label: line for line in lines for label in "ABC" if line.lstrip("| ")[:2] == f"{label} "
    }


def test_where_all_are_equal_none_is_the_best():
    assert marked([run(label, s, 0.1) for label in "ABC" for s in range(3)]) == set()
    assert marked([run("A", 0, 0.1), run("B", 0, 0.1)]) == set()


def test_runs_without_numbers_have_rows():
    """Of runs without observers the page says how they ended."""
    runs = [run(label, 0, 0.1, metric="own") for label in "AB"]
    rows = compare_runs(runs).to_dict("records")
    assert [(row["method"], row["runs"]) for row in rows] == [("A", 0), ("B", 0)]
    assert [each["outcome"] for each in describe_methods(runs).values()] == ["ok", "ok"]
    assert text(runs).splitlines()[2].split() == ["A", "-"]


SINGLE = [run("A", 0, 0.1), run("B", 0, 0.9), run("C", 0, 1.9)]


def test_of_single_runs_only_the_best_is_marked():
    assert marked(SINGLE) == {"A"}
    marks = {"text": " *", "markdown": "**", "latex": "mathbf"}
    for form, mark in marks.items():
        lines = lines_of(SINGLE, form)
        assert {label for label, line in lines.items() if mark in line} == {"A"}
        rows = list(csv.DictReader(io.StringIO(text(SINGLE, "csv"))))
    assert [row["best"] for row in rows] == ["1", "0", "0"]
    # the difference is a number, but nothing says how sure it is
    assert [row["p (Holm)"] for row in rows] == ["", "", ""]
    assert float(rows[1]["difference to best (worse is positive)"]) == pytest.approx(0.8)
    assert "Bold: the best. Nothing is tested" in note(SINGLE)


def test_seeds_that_the_methods_do_not_share_are_not_compared():
    a = [run("A", s, 0.1 + 0.01 * s) for s in range(5)]
    b = [run("B", s, 1.9 + 0.01 * s) for s in range(5, 8)]
    rows = rows_of([*a, *b])
    assert [(row["common"], row["best"], row["top"]) for row in rows.values()] == [
        (0, "", False),
        (0, "", False),
    ]
    told = note([*a, *b])
    assert "over 3 to 5 runs" in told
    assert "Nothing is compared: the methods have no seed and draw in common." in told


def test_a_single_common_seed_is_not_tested():
    records = [*(run("A", s, 0.1 + 0.01 * s) for s in range(5)), run("B", 3, 1.9)]
    rows = rows_of(records)
    assert marked(records) == {"A"}
    assert math.isnan(rows["B"]["p"])
    assert rows["A"]["mean"] == pytest.approx(0.13)
    assert "4 of 5 runs of A left out" in note(records)


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
    row = next(csv.DictReader(io.StringIO(text(records, "csv"))))
    assert (row["mean"], row["best"], row["diverged"], row["runs"]) == ("", "0", "3", "3")


def test_of_diverged_methods_none_is_the_best():
    every = [lost(label, s) for label in "AB" for s in range(3)]
    assert marked(every) == set()
    assert "Bold" not in note(every)
    assert marked([*every, run("C", 0, 1.0), run("C", 1, 1.1), run("C", 2, 1.2)]) == {"C"}
    # in runs of one seed too
    assert marked([lost("A", 0), run("B", 0, 1.0)]) == {"B"}
    # a mean over initial losses that were never finite
    nothing = [lost(label, s, first=math.nan) for label in "AB" for s in range(3)]
    assert marked(nothing) == set()
    assert "never" not in text(nothing)


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
    assert "never (1 of 3 diverged)" in text(records, reads={"T": "rounds_to_0.5"})


def test_methods_that_never_get_there_are_not_marked():
    records = [run(label, s, 1.0 + 0.1 * s) for label in "AB" for s in range(3)]
    assert marked(records, read="rounds_to_0.01") == set()
    reached = [*records, *(run("C", s, 0.001) for s in range(3))]
    assert marked(reached, read="rounds_to_0.01") == {"C"}
    # if none always gets there, the best is the one that mostly does
    mostly = [*records, run("C", 0, 0.001), run("C", 1, 0.001), run("C", 2, 1.0)]
    assert rows_of(mostly, read="rounds_to_0.01")["A"]["best"] == "C"


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
    rows = rows_of(unbalanced())
    a, b = (rows[label] for label in "AB")
    assert (a["best"], b["best"]) == ("B", "")
    assert a["difference"] == pytest.approx((0.2 + 0.3 + 0.3) / 3)
    assert marked(unbalanced()) == {"B"}
    # draws count alike in the means, as in the test: their difference is what was tested
    assert a["mean"] - b["mean"] == pytest.approx(a["difference"])
    assert [(row["runs"], row["left_out"], row["common"]) for row in (a, b)] == [
        (7, 0, 7),
        (7, 8, 7),
    ]
    assert "8 of 15 runs of B left out" in note(unbalanced())
    lines = csv.DictReader(io.StringIO(text(unbalanced(), "csv")))
    assert [row["left out"] for row in lines] == ["0", "8"]


def test_all_methods_share_the_runs_of_a_column():
    """A third method that lacks a seed takes it from all, whichever of them is the best. Gaps that
    are equal, but for rounding, are not tested."""
    records = [
        run(label, s, level + 0.01 * s)
        for label, level in (("A", 0.1), ("B", 0.5))
        for s in range(4)
    ]
    records += [run("C", s, 0.3 + 0.01 * s * s) for s in (0, 1, 3)]
    rows = rows_of(records)
    assert {row["runs"] for row in rows.values()} == {3}
    assert {rows[label]["pairs"] for label in "BC"} == {3}
    assert rows["A"]["mean"] == pytest.approx(0.1 + 0.01 * 4 / 3)
    seeds = np.array([0, 1, 3])
    raw = effect_of(0.2 + 0.01 * seeds**2 - 0.01 * seeds, "seeds").ahead
    np.testing.assert_allclose([rows[label]["p"] for label in "BC"], [np.nan, raw])


def test_a_metric_without_a_direction_shows_what_diverged():
    def gap(label, seed, **more):
        return run(label, seed, 0.5, metric="own", **more)

    good = [gap("A", s) for s in range(3)]
    bad = [run("B", s, math.nan, metric="own", outcome=NON_FINITE) for s in range(3)]
    told = text([*good, *bad], metrics=["own"])
    assert told.splitlines()[3].split() == ["B", "diverged"]
    some = [*good, *bad[:1], gap("B", 1), gap("B", 2)]
    assert "1 of 3 diverged" in text(some, metrics=["own"])
    assert marked(some, "own") == set()


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [
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
        (3.14159e-7, math.nan, "3.14e-07"),
        (0.0, 2e-7, "0 ± 2.0e-07"),
    ],
)
def test_decimals_follow_the_deviation(mean, deviation, text):
    assert mean_text(mean, deviation) == text
    table = table_of(A={"mean": mean, "deviation": deviation, "runs": 5})
    assert format_tables(table, "text").splitlines()[2] == f"A          {text}"
    assert f"| {text} |" in format_tables(table, "markdown")


def table_of(**methods):
    """A comparison with one column, made by hand."""
    heads = {"table": "T", "column": "c", "own": False} | EMPTY
    return pd.DataFrame([heads | {"method": label} | row for label, row in methods.items()])


def test_exponents_are_powers_of_ten_in_latex():
    small = {"mean": 3.1e-7, "deviation": 1e-8, "runs": 3, "top": True, "left_out": 1}
    made = table_of(**{r"A\b": small, "B": {"mean": -2.5e9, "runs": 1}})
    lines = format_tables(made, "latex").splitlines()
    name = r"A\textbackslash{}b"
    assert lines[5] == rf"{name} & $\mathbf{{3.10 \times 10^{{-7}} \pm 1.0 \times 10^{{-8}}}}$ \\"
    assert lines[6] == r"B & $-2.50 \times 10^{9}$ \\"
    assert f"1 of 4 runs of {name} left out" in lines[-1]


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
        assert (row["low (95 %)"], row["high (95 %)"]) in (("", ""), ("0", "0")), (
            "B has the runs of A"
        )


def test_seeds_on_one_draw_of_the_data_are_one_unit_of_the_test():
    """Two draws with two seeds each are two units, in whichever order the lists have them."""
    runs, longer = (
        [
            fedax.run(fedax.FedAvg(), quadratic(*random_quadratic(seed=data)), rounds=n, seed=seed)
            for data in (0, 1)
            for seed in (0, 1)
        ]
        for n in (1, 2)
    )
    text = fedax.table({"A": runs, "B": longer})
    assert "paired by draws of the data" in text
    rows = csv.DictReader(io.StringIO(fedax.table({"A": runs, "B": runs[::-1]}, "csv")))
    assert {row["low (95 %)"] for row in rows} == {"", "0"}
    with pytest.raises(InvalidInput, match=r"A with seeds \[0, 1, 0\]; allowed: each seed once"):
        fedax.table({"A": [*runs[:2], runs[0]]})


def test_the_note_says_whose_the_test_scores_are_beside_own_models():
    """Also where it stands alone."""
    runs = [run(label, 0, 0.8, metric="test_accuracy") for label in "AB"]
    said = "Test scores are the global model's"
    assert said not in note(runs, metrics=["test_accuracy"])
    runs[0].metrics["local_accuracy_mean"] = runs[0].metrics["test_accuracy"]
    assert said in note(runs, metrics=["test_accuracy"])
    assert said not in note(runs, metrics=["local_accuracy_mean"])


def test_of_several_draws_the_spread_is_over_their_means():
    """Draws with the means 2 and 4, whose seeds are 2 apart."""
    runs = [run("A", s, 2.0 + 2 * d + (-1) ** s, draw=d) for d in (0, 1) for s in (0, 1)]
    row = rows_of(runs)["A"]
    assert (row["mean"], row["runs"], row["units"]) == (3.0, 4, 2)
    np.testing.assert_allclose(row["deviation"], np.sqrt(2))
    assert "over 2 draws of the data, of 4 runs." in note(runs)
