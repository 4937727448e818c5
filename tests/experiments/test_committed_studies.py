"""Committed tables of runs are whole: none was cut short."""

import csv
import importlib.util
from collections import Counter, defaultdict
from itertools import product
from pathlib import Path

import pytest

from fedax.experiments.results.store import RunDirectory

DOCS = Path(__file__).parents[2] / "docs"
ARCHIVES = sorted(path.parent for path in DOCS.glob("**/recipe.toml"))


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def numbers_of(folder):
    """Returns a row for each run and metric of a kept folder, of its curves or its older table."""
    if (folder / "runs.csv").exists():
        return rows_of(folder / "runs.csv")
    kept = RunDirectory.load(folder)
    shown = {(run.task, run.label, run.draw, run.seed) for run in kept.shown()}
    return [
        {
            "task": run.task,
            "algorithm": run.label,
            "draw": run.draw,
            "seed": run.seed,
            "purpose": (run.task, run.label, run.draw, run.seed) in shown,
            "metric": metric,
            "rounds": run.rounds[-1],
            "outcome": run.ending,
        }
        for run in kept.records
        for metric in run.scalars
    ]


def script(path):
    """Returns a study's script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def whole(rows, columns, settings, rounds):
    """Asserts that each setting has one row for each of the rounds, in order."""
    found = defaultdict(list)
    for row in rows:
        found[tuple(row[column] for column in columns[:-1])].append(int(row[columns[-1]]))
    assert set(found) == {tuple(map(str, setting)) for setting in settings}
    assert all(each == list(rounds) for each in found.values())


def test_large_steps_has_all_settings(tmp_path, monkeypatch):
    study = script(DOCS / "findings" / "local-gd" / "large_steps.py")
    rounds = range(0, study.COMMUNICATIONS + 1, study.EVERY)
    assert len(study.SETTINGS) == 32
    whole(rows_of(study.RUNS), study.COLUMNS[:4], study.SETTINGS, rounds)
    # a run that was cut short is left out, and made again
    lines = study.RUNS.read_text().splitlines(keepends=True)
    monkeypatch.setattr(study, "RUNS", tmp_path / "cut.csv")
    study.RUNS.write_text("".join(lines[: 1 + 129 + 5]))
    assert len(study.read_runs()) == 129


def test_decentralized_runs_are_of_equal_length():
    rows = rows_of(DOCS / "findings" / "decentralized" / "metrics.csv")
    for data in ("iid", "shards"):
        some = [row for row in rows if row["data"] == data]
        settings = product({(row["method"], row["lambda"]) for row in some}, range(2))
        rounds = sorted({int(row["round"]) for row in some})
        columns = ("method", "lambda", "seed", "round")
        whole(some, columns, [(*line, seed) for line, seed in settings], rounds)


@pytest.mark.parametrize("folder", ARCHIVES, ids=lambda folder: folder.name)
def test_archived_cells_have_all_seeds(folder):
    """All cells of a task that were run have as many runs, of one length and with all metrics.

    Cells may be missing: pages of the reproduction count them as not run.
    """
    runs, lengths = defaultdict(set), defaultdict(set)
    for row in numbers_of(folder):
        cell = row["task"], row["algorithm"]
        runs[cell, row["purpose"], row["draw"], row["seed"]].add(row["metric"])
        if "non-finite" not in row["outcome"]:
            lengths[cell, row["purpose"]].add(row["rounds"])
    assert all(len(each) == 1 for each in lengths.values())
    metrics = defaultdict(set)
    for (cell, *_), names in runs.items():
        metrics[cell].add(frozenset(names))
    assert all(len(each) == 1 for each in metrics.values())
    counts = defaultdict(set)
    for (cell, purpose), number in Counter((cell, purpose) for cell, purpose, *_ in runs).items():
        counts[cell[0], purpose].add(number)
    assert all(len(each) == 1 for each in counts.values())
