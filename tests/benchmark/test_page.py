"""The page, from results made by hand: ranking, numbers, and what a browser makes of it."""

import html
import re

import numpy as np
import pytest

from fedax.benchmark.archive import Entry
from fedax.benchmark.page import render
from fedax.benchmark.standing import LEAST, Standing
from fedax.benchmark.task import BenchTask, Target
from fedax.core import Outcome
from fedax.results import Record
from fedax.results.forms import format_tables
from fedax.results.looks import choose_looks

ROUNDS = np.arange(21)
SPEEDS = {"FedAvg": 1.0, "Fast": 2.0, "<Slow>": 0.4, "Lost": -0.5}


def curve(speed, seed):
    """A loss from 1 on that falls at a speed, a little different for each seed."""
    losses = np.exp(-0.2 * speed * (1 + 0.01 * seed) * ROUNDS)
    metrics = {"train_loss": losses, "client_accuracy_mean": 1 - losses / 2}
    spent = {"gradients": 5.0 * ROUNDS, "time": 3600.0 * ROUNDS}
    return Record(
        "t", "m", seed, 0, ROUNDS, 0.0 * ROUNDS, 1e9 * ROUNDS, metrics, Outcome(), **spent
    )


def standing(tasks=LEAST):
    made = []
    for number in range(tasks):
        target = Target(
            value=0.2, reference="FedAvg", settings={}, seeds=[], values=[], fedax="", task=""
        )
        made.append(
            BenchTask(
                title=f"Task {number}",
                family="convex",
                tier="quick",
                metric="train_loss",
                learning_rate=[0.1, 1.0],
                quality={"final": "train_loss", "mean": "client_accuracy_mean"},
                experiment={"rounds": 20},
                name=f"task-{number}",
                target=target,
            )
        )
    found = {
        method: Entry(
            "t",
            method,
            "",
            "",
            {"source": "made"},
            [{"learning_rate": 0.1}],
            [[0.0]],
            records=tuple(curve(speed, seed) for seed in range(5)),
        )
        for method, speed in SPEEDS.items()
    }
    refused = {task.name: {"Fussy": "not </script> here"} for task in made}
    return Standing(made, {task.name: found for task in made}, refused)


def test_a_family_of_six_tasks_is_ranked_and_one_of_five_is_not():
    placed = standing().placed("convex", "rounds")
    assert [(one.method, one.rank) for one in placed] == [
        ("Fast", 1),
        ("FedAvg", 2),
        ("<Slow>", 3),
        ("Lost", 3),
    ]
    assert [(one.better, one.worse) for one in placed] == [(6, 0), (0, 0), (0, 6), (0, 6)]
    fewer = standing(LEAST - 1).placed("convex", "rounds")
    assert [one.method for one in fewer] == ["<Slow>", "Fast", "FedAvg", "Lost"]
    assert {one.rank for one in fewer} == {None}


def test_differences_are_corrected_and_signed():
    made = standing()
    told = made.differences(made.tasks[0], "rounds")
    assert told["Lost"].effect.mean == pytest.approx(-1.0)  # it never arrives
    assert told["Fast"].verdict == "better"
    plain = told["Fast"].effect.ahead
    assert told["Fast"].ahead == pytest.approx(3 * plain)  # the smallest of three
    final = made.differences(made.tasks[0], "final")
    assert final["Fast"].effect.mean > 0  # a smaller loss is better
    assert final["Lost"].verdict == "worse"
    assert len(made.verdicts("Fast", "hours")) == LEAST


def test_the_table_and_the_figure_show_all_methods():
    made = standing()
    table = made.table("gigabits", ["Fast", "FedAvg"])
    assert list(table["method"].unique()) == ["Fast", "FedAvg"]
    assert table[table["method"] == "Fast"]["top"].all()
    assert not table[table["method"] == "FedAvg"]["top"].any()
    # a target that is not reached is an infinite cost, and no diverged run
    lines = format_tables(made.table("rounds", ["Lost"]), "text").splitlines()
    assert lines[2].split() == [
        "Lost",
        *["never"] * LEAST,
    ]
    (axes,) = made.picture("rounds", "Lost").figure.axes
    found = {line.get_label(): line for line in axes.lines}
    assert set(found) == set(SPEEDS)
    # known methods look as in all figures, others take the colours that are left
    assert found["FedAvg"].get_color() == choose_looks(["FedAvg"])["FedAvg"].colour
    assert len({line.get_color() for line in found.values()}) == len(SPEEDS)
    assert made.picture("hours").name == "profiles-hours"
    assert Standing([], {}, {}).picture("rounds") is None


def tables(page):
    """The rows of each table, by its measure and heading, as texts."""
    sections = re.findall(
        r'<section data-axis="(\w+)">\s*<h2>(.*?)</h2>(.*?)</section>', page, flags=re.DOTALL
    )
    found = {}
    for measure, _, text in sections:
        rows = re.findall("<tr>(.*?)</tr>", text, flags=re.DOTALL)
        found[measure] = [
            [html.unescape(cell).strip() for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)]
            for row in rows
        ]
    return found


def test_the_page_has_a_table_for_each_measure():
    page = render(standing())
    found = tables(page)
    heads, *rows = found["rounds"]
    assert heads[:3] == ["Method", "Area", "Better / worse"]
    assert [row[0] for row in rows] == ["1. Fast", "2. FedAvg", "3. <Slow>", "3. Lost"]
    assert rows[0][2] == "6 / 0"
    assert rows[3][3] == "never"
    assert rows[1][3] == "8", "8 * 0.2 * 1.02 is above log(5)"
    assert len(found["final"][1]) == 1 + LEAST
    assert "Ranked by the area" in page
    assert page.count('class="profile"') == 4, "costs have profiles, qualities have none"
    assert "not &lt;/script&gt; here" in page
    assert "<script" not in page


def test_a_family_with_results_of_some_tasks_has_no_columns_of_ranks():
    whole = standing()
    first = whole.tasks[0].name
    entries = {name: found if name == first else {} for name, found in whole.entries.items()}
    page = render(Standing(whole.tasks, entries, whole.refused))
    heads, *rows = tables(page)["rounds"]
    assert f"No ranking yet: 1 of {LEAST} tasks have results." in page
    assert [row[0] for row in rows] == ["<Slow>", "Fast", "FedAvg", "Lost"]
    assert {len(row) for row in (heads, *rows)} == {1 + LEAST}
