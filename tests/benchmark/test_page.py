"""The page, from results made by hand: ranking, numbers, and what a browser makes of it."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from fedax.benchmark.archive import Entry
from fedax.benchmark.page import page_data, render
from fedax.benchmark.standing import LEAST, Standing
from fedax.benchmark.task import BenchTask, Target
from fedax.core import Outcome
from fedax.results import Record
from fedax.results.drawing.styles import styles
from fedax.results.forms import format_tables

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
    (panel,) = made.chart("rounds", "Lost").panels
    assert {series.label for series in panel.series} == set(SPEEDS)
    # known methods look as in all figures, others take the colours that are left
    found = {series.label: series.style for series in panel.series}
    assert found["FedAvg"] == styles(["FedAvg"])["FedAvg"]
    assert len({style % 8 for style in found.values()}) == len(SPEEDS)
    assert page_data(made)["styles"] == {"FedAvg": found["FedAvg"]}


PROBE = """<script>
(async () => {
  const found = {}, pause = () => new Promise((go) => setTimeout(go, 100));
  const rows = () => [...document.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent));
  const press = (name, value) => document.querySelector(`input[name=${name}][value=${value}]`).click();
  await pause();
  found.rounds = rows();
  found.ranking = document.getElementById("ranking").textContent;
  found.paths = document.querySelectorAll("#profile path").length;
  found.colours = Object.fromEntries([...document.querySelectorAll("#profile path")].map((path) => [path.textContent, path.style.stroke]));
  document.querySelector("tbody button").click(); await pause();
  found.curve = document.querySelector("#curve h2").textContent;
  found.lines = document.querySelectorAll("#curve path").length;
  found.theme = document.documentElement.dataset.theme;
  document.getElementById("theme").click();
  found.other = document.documentElement.dataset.theme;
  press("measure", "final"); await pause();
  found.final = rows();
  found.refused = document.querySelector("#refused li").textContent;
  found.wide = document.documentElement.scrollWidth > innerWidth;
  document.body.dataset.found = JSON.stringify(found);
})();
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_in_a_browser(width, tmp_path):
    found = in_browser(standing(), width, tmp_path)
    assert [row[0] for row in found["rounds"]] == ["1. Fast", "2. FedAvg", "3. <Slow>", "3. Lost"]
    assert found["rounds"][0][2] == "6 / 0"
    assert found["rounds"][3][3] == "never"
    assert found["ranking"].startswith("Ranked")
    assert found["paths"] == 4
    assert found["colours"]["FedAvg"] == "var(--s6)"
    assert len(set(found["colours"].values())) == 4
    assert found["curve"] == "Fast on Task 0"
    assert found["lines"] == 3
    assert found["theme"] != found["other"]
    assert len(found["final"][0]) == 1 + LEAST
    assert "</script>" in found["refused"]
    assert not found["wide"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_family_with_results_of_some_tasks_has_no_columns_of_ranks(tmp_path):
    whole = standing()
    first = whole.tasks[0].name
    entries = {name: found if name == first else {} for name, found in whole.entries.items()}
    found = in_browser(Standing(whole.tasks, entries, whole.refused), 1200, tmp_path)
    assert found["ranking"].startswith(f"No ranking yet: 1 of {LEAST} tasks have results.")
    assert [row[0] for row in found["rounds"]] == ["<Slow>", "Fast", "FedAvg", "Lost"]
    assert {len(row) for row in found["rounds"]} == {1 + LEAST}


def in_browser(standing, width, tmp_path):
    """What the probe finds on the page."""
    page = render(standing).replace("</body>", PROBE + "</body>")
    (tmp_path / "index.html").write_text(page)
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --enable-logging=stderr"
    done = subprocess.run(
        [
            "chromium",
            *flags.split(),
            "--virtual-time-budget=5000",
            f"--window-size={width},900",
            "--dump-dom",
            f"--user-data-dir={tmp_path / 'profile'}",
            (tmp_path / "index.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    text = re.search(r'data-found="(.*?)"', done.stdout)[1]
    return json.loads(text.replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">"))


def test_the_numbers_of_the_page_are_those_of_the_standing():
    made = standing()
    told = page_data(made)["families"]["convex"]
    assert told["ratios"]["rounds"]["Lost"] == [None] * LEAST
    assert told["ratios"]["rounds"]["Fast"] == [1.0] * LEAST
    assert told["tasks"][0]["cells"]["rounds"]["FedAvg"][0] == 8.0  # 8 * 0.2 * 1.02 is above log(5)
