"""Membership inference as part of recipes and experiment files."""

import dataclasses

import numpy as np
import pytest

from fedax import papers
from fedax.core import InvalidInput, Outcome
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume
from fedax.papers.comparison import Comparison
from fedax.papers.study import reproduce

LEAKY = """
paper = "Nobody, Nothing (2020)"
shows = "Table 9"
title = "Leaks"
chosen = ["All of it."]
[experiment]
rounds = 3
seeds = [0, 1]
observe = ["train_loss", "test_accuracy"]
[experiment.task]
name = "digits"
partition = "iid"
clients = 4
model = "mlp"
[experiment.schedule]
steps = 2
[[experiment.algorithm]]
name = "fedavg"
label = "Plain"
[[experiment.algorithm]]
name = "fedprox"
label = "Prox"
[[variant]]
name = "Digits"
[audit]
every = 2
[scale.smoke]
[scale.small]
set = { rounds = 2, "audit.every" = 1 }
variants = ["Digits, membership inference"]
[scale.paper]
[[claim]]
text = "Plain leaks at most 0.2 more than Prox"
check = "better"
a = "Plain"
b = "Prox"
margin = -0.2
metric = "auc"
[[claim]]
text = "Plain trains to a loss below 9"
check = "below"
a = "Plain"
margin = 9.0
metric = "train_loss"
"""


@pytest.fixture(scope="module")
def leaky(tmp_path_factory):
    return reproduce(
        papers.Recipe.parse(LEAKY), "paper", tmp_path_factory.mktemp("leaks") / "a", Display()
    )


@pytest.mark.slow
def test_a_recipe_attacks_every_variant_beside_its_runs(leaky):
    titles = ["Digits", "Digits, membership inference"]
    assert list(leaky.reads) == titles
    audits = [run for run in leaky.records if run.task == titles[1]]
    assert {(run.label, run.seed) for run in audits} == {
        (label, seed) for label in ("Plain", "Prox") for seed in (0, 1)
    }
    for run in audits:
        assert run.rounds.tolist() == [0, 2, 3]
        assert run.metrics.keys() == {"auc", "auc_calibrated", "train_loss", "test_accuracy"}
        assert ((run.metrics["auc"] > 0.3) & (run.metrics["auc"] < 0.7)).all()
    assert all("auc" not in run.metrics for run in leaky.records if run.task == titles[0])
    # the attacked model has a quarter of the examples: another loss than that of the main run
    losses = {
        run.task: run.metrics["train_loss"][-1]
        for run in leaky.records
        if (run.label, run.seed) == ("Plain", 0)
    }
    assert losses[titles[0]] != losses[titles[1]]


@pytest.mark.slow
def test_claims_about_areas_are_of_the_audits_and_others_of_the_runs(leaky):
    (leak, loss) = leaky.comparison().verdicts
    assert leak[1].verdict == "holds"
    assert loss[1].verdict == "holds"
    runs = [
        dataclasses.replace(
            run,
            metrics=run.metrics
            | {"auc": np.array([0.5, 0.5, 0.9 if run.label == "Plain" else 0.5])},
        )
        if "auc" in run.metrics
        else run
        for run in leaky.records
    ]
    # a planted leak of 0.4 is found, and a loss of the attacked models is not taken for that of the
    # runs
    runs = [
        dataclasses.replace(r, metrics=r.metrics | {"train_loss": r.rounds + 99.0})
        if "auc" in r.metrics
        else r
        for r in runs
    ]
    leak, loss = Comparison(leaky.recipe, runs).verdicts
    assert leak[1].verdict == "does not hold"
    assert loss[1].verdict == "holds"


@pytest.mark.slow
def test_an_interrupted_audit_is_taken_up(leaky, tmp_path):
    import shutil

    shutil.copytree(leaky.path, tmp_path / "b")
    directory = RunDirectory.load(tmp_path / "b")
    last = directory.planned[-1].id
    stopped = dataclasses.replace(directory.runs[last], outcome=Outcome("interrupted", 1))
    directory.take({last: stopped})
    directory.close("interrupted")
    again = resume(tmp_path / "b", Display())
    assert again.status == "finished"
    for one, other in zip(leaky.records, again.records, strict=True):
        assert one.metrics.keys() == other.metrics.keys()
        for name, values in one.metrics.items():
            np.testing.assert_array_equal(other.metrics[name], values)


def test_refusals():
    task = {"name": "digits", "clients": 600}
    few = Experiment.of(name="a", task=task, algorithm=[{"name": "fedavg"}], audit={"every": 1})
    with pytest.raises(InvalidInput, match="at least 4"):
        few.plan()
