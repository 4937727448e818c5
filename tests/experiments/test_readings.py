"""Readings of curves count rounds, and those of earlier versions stay readable where they were
kept."""

import csv
import dataclasses
import io
import runpy
from pathlib import Path

import numpy as np
import pytest

from fedax import papers
from fedax.core import InvalidInput, UnknownName
from fedax.core.history import Outcome
from fedax.papers.numbers import Results
from fedax.papers.recipe import Recipe
from fedax.papers.study import PaperDirectory, open_directory
from fedax.results.frame import numbers_frame
from fedax.results.tables.reductions import (
    is_value_reduction,
    read_curve,
)
from fedax.results.tables.summary import scale_of
from samples import OWN, begin, put, record

REPRODUCTION = Path(__file__).parents[2] / "docs" / "reproduction"
FOLDERS = sorted(path.parent.name for path in REPRODUCTION.glob("*/runs.tar.xz"))
TABLES = sorted(name for name in papers.recipe_files() if name.startswith("fedbc-table-"))


def test_reading_curves():
    curve = np.array([9.0, 3.0, 1.0, 2.0])
    rounds = np.array([0, 10, 20, 30])
    reads = {
        "last": 2.0,
        "best": 1.0,
        "best_observed": 1.0,
        "mean_last_1_rounds": 2.0,
        "mean_last_11_rounds": 1.5,
        "mean_last_20_rounds": 1.5,
        "mean_last_99_rounds": 2.0,
        "rounds_to_3": 10.0,
        "rounds_to_0.5": float("inf"),
        "gigabits_to_3": 10.0,
        "last_over_half": 2.0,
        "mean_change": 1.0,
    }
    assert {read: read_curve(curve, rounds, read, False) for read in reads} == reads
    # a metric of cohorts, which has no value where nobody worked
    cohorts = np.array([np.nan, 3.0, 1.0, np.nan])
    for read, value in (("last", 1.0), ("best", 1.0), ("mean_last_11_rounds", 2.0)):
        assert read_curve(cohorts, rounds, read, False) == value
    assert read_curve(np.array([4.0]), rounds[:1], "mean_last_10_rounds", True) == 4.0
    # one observation does not change
    assert np.isnan(read_curve(np.array([4.0]), rounds[:1], "mean_change", True))
    for wrong in (
        "first",
        "mean_last_0_rounds",
        "mean_last_x_rounds",
        "mean_last_2_round",
        "rounds_to_",
    ):
        with pytest.raises(InvalidInput, match="read: got"):
            read_curve(curve, rounds, wrong, False)
        assert not is_value_reduction(wrong)
    with pytest.raises(UnknownName, match="Did you mean 'test_accuracy'"):
        Results([record("A")]).of("T", "A", "test_acuracy", "last")


@pytest.mark.parametrize("seed", range(30))
def test_the_mean_is_over_the_observations_of_the_last_rounds(seed):
    """Whatever the cadence, and where the last observation is out of step, as the final one may
    be."""
    rng = np.random.default_rng(seed)
    every = int(rng.integers(1, 7))
    total = int(rng.integers(1, 60))
    k = int(rng.integers(1, 70))
    rounds = np.array([*range(0, total, every), total])
    curve = rng.normal(size=len(rounds)).astype(np.float32)
    late = [value for value, at in zip(curve, rounds, strict=True) if at > max(total - k, 0)]
    np.testing.assert_allclose(
        read_curve(curve, rounds, f"mean_last_{k}_rounds", True), np.mean(late), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("metric", "read", "worst"),
    [
        ("train_loss", "last", 9.0),
        ("train_loss", "rounds_to_1", np.inf),
        ("train_loss", "last_over_half", np.inf),
        ("train_loss", "mean_change", np.inf),
        ("test_accuracy", "last", 0.1),
        ("test_accuracy", "last_over_half", -np.inf),
        ("test_accuracy", "mean_change", np.inf),
    ],
)
def test_tables_and_claims_read_a_lost_run_alike(metric, read, worst):
    """The second run diverged: its number is the worst value of the task, or the infinity that is
    worse than all numbers."""
    curves = {"losses": (9.0, 3.0, 0.5), "test_accuracy": np.array([0.1, 0.6, 0.8])}
    outcomes = [None, Outcome("diverged", 2)]
    runs = [record("A", seed=s, outcome=outcomes[s], **curves) for s in range(2)]
    rows = numbers_frame(runs, {"T": read}, [metric])
    assert rows["lost"].tolist() == [False, True]
    np.testing.assert_allclose(rows["value"][1], scale_of(metric) * worst)
    assert list(Results(runs).of("T", "A", metric, read)) == rows["value"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_fedbcs_tables_are_read_by_the_best_value_with_a_mean_beside_it(name):
    recipe = papers.load(name)
    (beside,) = recipe.also_read
    assert (recipe.read[:4], beside[:10]) == ("best", "mean_last_")
    assert all(scale.read is None for scale in recipe.scale.values())
    assert any(
        "does not state its reading" in text and "Tables 6 and 8" in text for text in recipe.chosen
    )
    # grids select by it
    assert all(e.reads == recipe.read for e in recipe.experiments("paper"))


def same_table(made, kept):
    """Whether two tables say the same: p-values differ in their last digits."""
    rows = [list(csv.reader(io.StringIO(text))) for text in (made, kept)]
    assert len(rows[0]) == len(rows[1])
    for mine, other in zip(*rows, strict=True):
        for a, b in zip(mine, other, strict=True):
            try:
                np.testing.assert_allclose(float(a), float(b), rtol=2e-3, atol=1e-9)
            except ValueError:
                assert a == b


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_the_tables_of_kept_folders_are_made_of_their_runs(name, tmp_path):
    kept = open_directory(folder := REPRODUCTION / name)
    dataclasses.replace(kept, path=tmp_path).write_tables()
    for table in ("results.csv", "claims.csv"):
        same_table((tmp_path / table).read_text(), (folder / table).read_text())


@pytest.mark.slow
def test_the_overview_is_of_the_kept_curves():
    """Read without the library, by the script that writes it; it stops where a folder's tables say
    something else."""
    files = [REPRODUCTION / "cells.csv", *sorted(REPRODUCTION.glob("*.md"))]
    before = [file.read_text() for file in files]
    runpy.run_path(str(REPRODUCTION / "status.py"), run_name="__main__")
    assert [file.read_text() for file in files] == before


@pytest.mark.slow
def test_a_rebuilt_archive_has_the_columns_that_a_changed_recipe_reads(tmp_path):
    recipe = Recipe.parse(OWN.replace("[experiment.grid]\nfedprox.mu = [0.0, 1e4]\n", ""))
    ran = recipe.model_copy(update={"ran": "paper"})
    made = PaperDirectory(tmp_path / "a", "A", recipe=ran)
    begin(made, made.recipe.experiments("paper"))
    put(made, record("Plain", "Only", 0, 5, losses=(9.0, 3.0, 1.0)))
    made.close("finished")
    made.keep(tmp_path / "b")
    text = (tmp_path / "b" / "recipe.toml").read_text()
    (tmp_path / "b" / "recipe.toml").write_text(
        text.replace('read = "last"\n', 'read = "best"\n').replace(
            "also_read = []", 'also_read = ["mean_last_2_rounds"]'
        )
    )
    open_directory(tmp_path / "b").write_outputs()
    with (tmp_path / "b" / "results.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    assert float(row["mean_last_2_rounds_mean"]) == 2.0
