"""The standing archive: what it has is current, made again, and what pages and profiles say."""

import hashlib
import json
import lzma
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedax.benchmark import trials
from fedax.benchmark.archive import SHIPPED, Archive, Entry
from fedax.benchmark.page import render
from fedax.benchmark.spaces import read_spaces
from fedax.benchmark.standing import Standing
from fedax.benchmark.task import FAMILIES, Method, load_tasks
from fedax.utils.files import portable

ROOT = Path(__file__).parents[2]
SMALL = 20.0
"""Seconds of one core up to which a cell is small."""
PREFIX, TOLERANCE = 10, 0.01
"""Rounds of the first test, and how far the metric may be from the archived one, relatively. On one
machine with the same versions the difference is 0, with the native operations on or off; without
optimizations of the compiler it is up to 0.002."""
WHOLE_TOLERANCE = 0.1
"""Of the mean over all rounds and seeds: methods that are chaotic in their data enlarge what other
versions round otherwise, to 0.16 at single observations."""


def standing():
    return Standing.of(list(load_tasks().values()), Archive([SHIPPED]))


def shipped():
    """The files of the standing archive, each with its result, task and method."""
    tasks = load_tasks()
    for file in sorted(SHIPPED.glob("*/*.xz")):
        entry = Entry.from_bytes(file.read_bytes())
        assert entry.task == file.parent.name
        yield (
            file,
            entry,
            tasks[entry.task],
            Method.parse(entry.method.lower().replace(" ", ":", 1)),
        )


def test_the_shipped_archive_is_what_would_be_made_now():
    """Task, target, budget, space and search of every file are the standing ones."""
    spaces = read_spaces()
    for _, entry, task, method in shipped():
        space = trials.search_space(task, method, spaces)
        assert entry.key == trials.key_of(task, method, space), (entry.task, entry.method)
        assert entry.judged == trials.judged_by(task)
        assert entry.search == trials.SEQUENCE
        assert entry.refused or [run.seed for run in entry.records] == [0, 1, 2, 3, 4]
        assert entry.refused or len(entry.settings) == 2 * trials.STANDING.settings


def drawn(cells):
    """One of some cells, which changes with the commit; without a repository, with the archive."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = done.stdout if done.returncode == 0 else repr([entry.key for _, entry, *_ in cells])
    return cells[int(hashlib.sha256(text.encode()).hexdigest(), 16) % len(cells)]


def made_again(file, *numbers, native="1"):
    """How far an archived cell is from one that a fresh process makes, as users run it: tests have
    float64, and a compiler without optimizations."""
    command = [sys.executable, str(Path(__file__).parent / "again.py"), str(file)]
    environment = os.environ | {"FEDAX_NATIVE": native}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [*command, *map(str, numbers)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    largest, mean, same = done.stdout.split()
    return float(largest), float(mean), same == "True"


@pytest.mark.slow
def test_the_beginning_of_a_small_cell_is_made_again():
    cells = [
        each
        for each in shipped()
        if not each[1].refused and each[1].seconds <= SMALL and each[2].tier == "quick"
    ]
    largest, _, same_traffic = made_again(drawn(cells)[0], PREFIX, 1)
    assert largest <= TOLERANCE
    assert same_traffic


@pytest.mark.slow
@pytest.mark.parametrize("native", ["1", "0"])
def test_a_cell_is_made_again(native):
    """With the native operations, and without them."""
    cells = [each for each in shipped() if not each[1].refused and each[2].tier == "quick"]
    _, mean, same_traffic = made_again(drawn(cells)[0], native=native)
    assert mean <= WHOLE_TOLERANCE
    assert same_traffic


@pytest.mark.slow
def test_the_page_follows_from_the_archive():
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        choose = __import__("choose")
        page, article = choose.page(), choose.article()
    finally:
        sys.path.remove(str(ROOT / "docs" / "hooks"))
    assert (ROOT / "docs" / "choose.md").read_text() == page, "run make generate"
    assert (ROOT / "docs" / "findings" / "benchmark.md").read_text() == article, "run make generate"
    made = standing()
    for family in FAMILIES:
        told = (
            f"**{choose.NAMES[family]}**"
            if any(choose.compared(made, task) for task in made.tasks_of(family))
            else choose.NAMES[family].lower()
        )
        assert told in page
    # another archive is another page
    fewer = Standing(made.tasks, {name: {} for name in made.entries}, made.refused)
    assert "This section says nothing about them" in choose.page(fewer)
    assert "| method |" not in choose.findings(fewer)
    assert "| method |" not in choose.article(fewer)


@pytest.mark.slow
def test_the_article_counts_the_verdicts():
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        article = __import__("choose").article()
    finally:
        sys.path.remove(str(ROOT / "docs" / "hooks"))
    made = standing()
    tasks = [task for task in made.tasks_of("convex") if "SCAFFOLD" in made.entries[task.name]]
    (row,) = [
        line for line in article.split("## ")[1].splitlines() if line.startswith("| SCAFFOLD |")
    ]
    by_rounds = [made.differences(task, "rounds")["SCAFFOLD"] for task in tasks]
    ahead = sum(one.ahead <= 0.05 for one in by_rounds)
    behind = sum(one.behind <= 0.05 for one in by_rounds)
    assert row.split(" | ")[1:4:2] == [str(len(tasks)), f"{ahead} / {behind}"]


def plain_cost(run, metric, target, higher):
    """Rounds to the target, by a loop over the lines of a file."""
    values = run["curves"][f"metrics/{metric}"][1]
    ended = run["outcome"]["kind"] in ("diverged", "non-finite")
    first, last = values[0], values[-1]
    if ended or not (last >= first if higher else last <= first):
        return math.inf
    for rounds, value in zip(run["curves"]["rounds"][1], values, strict=True):
        if rounds and (value >= target if higher else value <= target):
            return float(rounds)
    return math.inf


@pytest.mark.slow
def test_profiles_are_those_of_plain_numpy_on_the_files():
    """Medians, ratios, areas and bootstrap intervals of all families, recomputed in loops."""
    made = standing()
    compared = 0
    for family in made.families:
        tasks = made.tasks_of(family)
        costs = {}
        for task in tasks:
            for file in (SHIPPED / task.name).glob("*.xz"):
                about, *runs = map(json.loads, lzma.decompress(file.read_bytes()).splitlines())
                if about["judged"] == trials.judged_by(task) and runs:
                    higher = "accuracy" in task.metric
                    each = [plain_cost(r, task.metric, task.target.value, higher) for r in runs]
                    costs.setdefault(about["method"], {})[task.name] = sorted(each)[2]
        whole = {m: c for m, c in costs.items() if len(c) == len(tasks)}
        placed = {one.method: one for one in made.placed(family, "rounds")}
        assert set(placed) == set(whole)
        draws = np.random.default_rng(0).integers(0, len(tasks), (10_000, len(tasks)))
        best = {task.name: min((c[task.name] for c in whole.values()), default=0) for task in tasks}
        for method, row in whole.items():
            parts = []
            for task in tasks:
                ratio = row[task.name] / best[task.name] if math.isfinite(row[task.name]) else 4.0
                parts.append(min(max((4.0 - ratio) / 3.0, 0.0), 1.0))
            means = np.array(parts)[draws].mean(1)
            expected = [np.mean(parts), *np.percentile(means, [2.5, 97.5])]
            told = placed[method]
            assert [told.area, told.low, told.high] == pytest.approx(expected)
            compared += 1
    # single tasks count too, while families are incomplete
    for task in made.tasks:
        for method in made.entries[task.name]:
            file = SHIPPED / task.name / f"{portable(method)}.tar.xz"
            _, *runs = map(json.loads, lzma.decompress(file.read_bytes()).splitlines())
            higher = "accuracy" in task.metric
            each = [plain_cost(r, task.metric, task.target.value, higher) for r in runs]
            assert made.numbers(task, "rounds", method).tolist() == pytest.approx(each)
            compared += 1
    assert compared >= sum(not entry.refused for _, entry, *_ in shipped())


@pytest.mark.slow
def test_the_leaderboard_is_that_of_the_archive():
    made = standing()
    page = render(made)
    for family in made.families:
        for method in made.methods(family):
            assert f">{method}</th>" in page or f". {method}</th>" in page, family
    assert page == render(standing())
