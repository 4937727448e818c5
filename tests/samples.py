"""A small experiment, a recipe and made-up runs, for the tests of experiments, report and command
line."""

import dataclasses

import numpy as np

from fedax.core import Outcome
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.grid import edges, judge_members
from fedax.experiments.results.planned import planned_runs, read_study, study_of
from fedax.experiments.results.store import RunDirectory
from fedax.results import Record
from fedax.results.versions import versions

TINY = """\
name = "Tiny <run>"
rounds = 2
seeds = [0, 1]

[task]
name = "synthetic"
alpha = 1.0
beta = 1.0
clients = 4

[solver]
learning_rate = 0.05

[schedule]
cohort = 2
steps = 3

[[algorithm]]
name = "fedavg"

[[algorithm]]
name = "fedprox"
mu = 1
"""

OWN = """
paper = "Nobody, Nothing (2020)"
shows = "Table 9"
title = "A | test"
metric = "train_loss"
draws = [0, 1]
chosen = ["All of it."]
[experiment]
rounds = 2
[experiment.task]
name = "synthetic"
clients = 3
[experiment.schedule]
steps = 2
[[experiment.algorithm]]
name = "fedavg"
label = "Plain"
[[experiment.algorithm]]
name = "fedprox"
label = "Prox"
[experiment.grid]
fedprox.mu = [0.0, 1e4]
[[variant]]
name = "Only"
[scale.smoke]
[scale.small]
set = { rounds = 3 }
[scale.paper]
draws = [5]
[targets]
Only = { Plain = [2.0, 0.5], Prox = [1.0] }
[[claim]]
text = "Plain is as good as Prox with mu = 0"
check = "close"
a = "Plain"
b = "Prox"
margin = 1e-6
"""


def record(
    label="FedAvg", task="T", seed=0, draw=0, losses=(2.0, 1.0, 0.5), outcome=None, **metrics
):
    """A run with the given training losses, observed after every round."""
    count = len(losses)
    clients = np.tile(np.array([0.9, 0.2, np.nan, 0.5]), (count, 1))
    kept = {
        "train_loss": np.array(losses),
        "test_accuracy": np.linspace(0.1, 0.8, count),
        "client_accuracy": clients,
    }
    rounds = np.arange(count)
    return Record(
        task,
        label,
        seed,
        draw,
        rounds,
        rounds * 0.5,
        rounds * 640,
        kept | metrics,
        outcome or Outcome(),
    )


def begin(directory, experiments):
    """Writes experiments into a run directory, as running them does first."""
    for name, value in study_of(experiments).items():
        setattr(directory, name, value)
    directory.begin()


def put(directory, *records):
    """Keeps made-up runs in a run directory, each as the planned run of its names."""
    known = {
        (run.task, run.label, run.seed, run.draw): (run.id, run.made_with)
        for run in planned_runs(read_study(directory, trust=True))
    }
    for kept in records:
        run, settings = known[kept.task, kept.label, kept.seed, kept.draw]
        directory.take({run: dataclasses.replace(kept, settings=settings, versions=versions())})


def judge(experiment, records):
    """The judged members of a grid of which made-up runs are there, and what is said of edges."""
    runs = {run.label: run for run in planned_runs([experiment])}
    pairs = [
        (
            runs[record.label].model_copy(update={"selects": record.seed not in experiment.seeds}),
            record,
        )
        for record in records
    ]
    judged = judge_members(pairs, experiment.select, experiment.reads)
    return judged, edges(judged)


def made_up(path, *records):
    """A run directory with made-up runs, of experiments that have their names."""
    directory = RunDirectory(path, path.name)
    experiments = []
    for task, draw in dict.fromkeys((run.task, run.draw) for run in records):
        runs = [run for run in records if (run.task, run.draw) == (task, draw)]
        labels = dict.fromkeys(run.label for run in runs)
        experiments.append(
            Experiment.of(
                name=task,
                seeds=list(dict.fromkeys(run.seed for run in runs)),
                task={"name": "synthetic", "clients": 4, "seed": draw},
                algorithm=[
                    {"name": "fedprox", "label": label, "mu": float(place)}
                    for place, label in enumerate(labels)
                ],
            )
        )
    begin(directory, experiments)
    put(directory, *records)
    return directory


def ids(directory):
    """The ids of a directory's runs by label and seed."""
    return {(run.label, run.seed): run.id for run in directory.planned if run.id in directory.runs}
