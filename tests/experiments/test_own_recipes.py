"""Recipes from file to report: scales, what they run and how they read, and files that are
refused."""

import csv
import shutil

import numpy as np
import pytest

from fedax import papers
from fedax.core import Outcome, SpecError
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume
from fedax.papers.comparison import Comparison
from fedax.papers.study import open_directory, reproduce
from samples import OWN, record


@pytest.mark.slow
def test_a_recipe_from_file_to_report(tmp_path):
    recipe = papers.Recipe.parse(OWN)
    assert [e.rounds for e in recipe.experiments("small")] == [3, 3]
    assert [e.task.options["seed"] for e in recipe.experiments("paper")] == [5]
    directory = reproduce(recipe, "small", tmp_path / "a", Display())
    assert [(r.draw, r.label, r.seed) for r in directory.records] == [
        (d, *run)
        for d in (0, 1)
        for run in (("Plain", 0), ("Prox, mu=0.0", 1), ("Prox, mu=0.0", 0), ("Prox, mu=10000.0", 1))
    ]
    with (tmp_path / "a" / "results.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert [(row["algorithm"], row["paper_mean"], row["runs"]) for row in table] == [
        ("Plain", "2", "2"),
        ("Prox", "1", "2"),
    ]
    ends = [r.metrics["train_loss"][-1] for r in directory.records if r.label == "Plain"]
    assert abs(float(table[0]["ours_mean"]) - np.mean(ends)) < 1e-4
    page = (tmp_path / "a" / "report.html").read_text()
    assert ">Claims<" in page
    assert ">The paper beside ours<" in page
    shutil.rmtree(tmp_path / "a" / "runs" / directory.planned[6].id)
    kept = (tmp_path / "a" / "claims.csv").read_text()
    (tmp_path / "a" / "claims.csv").unlink()
    resume(tmp_path / "a", Display(), load=open_directory)
    assert (tmp_path / "a" / "claims.csv").read_text() == kept
    assert open_directory(tmp_path / "a").recipe.ran == "small"
    with (tmp_path / "a" / "claims.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    assert (row["verdict"], row["comparison"], row["units"], row["unit"]) == (
        "holds",
        "Plain minus Prox",
        "2",
        "draws",
    )


@pytest.mark.slow
def test_a_method_more_makes_only_its_own_runs(tmp_path):
    recipe = papers.Recipe.parse(OWN)

    def make(*labels):
        return reproduce(recipe.only("smoke", [], labels), "smoke", tmp_path / "a", Display())

    first = make("Plain")
    both = make("Prox")
    assert list(dict.fromkeys(run.label for run in both.shown())) == ["Plain", "Prox"]
    for name, run in first.runs.items():
        assert both.runs[name].seconds.tolist() == run.seconds.tolist(), "it was made again"
    # all, and then one of them
    assert len(make().shown()) == len(make("Plain").shown()) == len(both.shown())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('shows = "Table 9"', 'showz = "Table 9"', "Did you mean 'shows'"),
        ("[scale.small]\nset = { rounds = 3 }", "", "scale: got"),
        ("Only = {", "Ony = {", "targets: got 'Ony'"),
        ("Plain = [2.0", "Plan = [2.0", "Did you mean 'Plain'"),
        ('b = "Prox"', 'b = "Prx"', "Did you mean 'Prox'"),
        ('check = "close"', 'check = "closer"', "got 'closer'"),
        ("set = { rounds = 3 }", "set = { rounds = -3 }", "rounds: got -3"),
        (
            "set = { rounds = 3 }",
            'algorithms = ["Plan"]',
            "scale.small: got 'Plan'.*Did you mean 'Plain'",
        ),
        ("set = { rounds = 3 }", 'set = { "rounds.x" = 3 }', "rounds.x"),
        ("set = { rounds = 3 }", 'read = "mean_last_0"', "read: got 'mean_last_0'"),
        ("margin = 1e-6", 'read = "rounds_to_."', "read: got 'rounds_to_.'"),
    ],
)
def test_bad_recipes_are_refused(old, new, words):
    assert old in OWN
    with pytest.raises(SpecError, match=words):
        papers.Recipe.parse(OWN.replace(old, new), "r.toml")


def test_a_scale_may_read_curves_in_its_own_way():
    recipe = papers.Recipe.parse(
        OWN.replace("set = { rounds = 3 }", 'read = "mean_last_2_rounds"')
    ).model_copy(update={"ran": "small"})
    runs = [record("Plain", "Only", losses=(9.0, 3.0, 1.0))]
    assert list(Comparison(recipe, runs).cells["ours_mean"]) == [2.0]
    other = Comparison(recipe.model_copy(update={"ran": "paper"}), runs)
    assert list(other.cells["ours_mean"]) == [1.0]


def test_interrupted_runs_are_not_compared():
    """The mean is that of the runs that came to their end."""
    recipe = papers.Recipe.parse(OWN)
    stopped = record("Plain", "Only", seed=1, losses=(9.0,), outcome=Outcome("interrupted", 0))
    runs = [record("Plain", "Only", losses=(9.0, 1.0)), stopped]
    (row,) = Comparison(recipe, runs).cells.to_dict("records")
    assert (row["ours_mean"], row["units"]) == (1.0, 1)
