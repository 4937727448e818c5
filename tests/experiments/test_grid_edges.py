"""A selected value at the edge of its grid is said: in the terminal, the report and
summary.json."""

import io

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import fedax
from fedax.core import Outcome
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment
from samples import begin, judge, put, record

SECTIONS = {
    "name": "T",
    "rounds": 2,
    "seeds": [0],
    "observe": ["train_loss"],
    "task": {"name": "synthetic", "clients": 3},
    "algorithm": [{"name": "fedavg"}, {"name": "fedprox", "label": "Prox"}],
}


def of(**grid):
    return Experiment.of(**SECTIONS, grid=grid)


def best_is(experiment, best):
    """What is said of runs of which those whose labels have some end are best."""
    labels = [member.label for member in experiment.members()]
    curves = [np.array([2.0, 0.1 if label.endswith(best) else 1.0]) for label in labels]
    runs = [
        record(label, "T", 1, losses=curve, validation_loss=curve)
        for label, curve in zip(labels, curves, strict=True)
    ]
    return judge(experiment, runs)[1]


@pytest.mark.parametrize(
    ("mu", "sentences"),
    [
        (0.1, ["Prox: mu = 0.1 is the smallest of its list (0.1, 0.5, 1.0). Try smaller values."]),
        (0.5, []),
        (1.0, ["Prox: mu = 1.0 is the largest of its list (0.1, 0.5, 1.0). Try larger values."]),
    ],
)
def test_an_edge_is_named(mu, sentences):
    experiment = of(Prox={"mu": [0.5, 0.1, 1.0]})
    found = best_is(experiment, f"Prox, mu={mu}")
    assert [sentence for sentence in found if sentence.startswith("Prox")] == sentences


def test_zero_is_no_edge():
    experiment = of(Prox={"mu": [0.0, 1.0]}, solver={"learning_rate": [0.1]})
    assert best_is(experiment, "Prox, mu=0.0, learning_rate=0.1") == []


def test_values_that_are_level_are_no_edges():
    """The validation loss of the global model may not depend on a setting of own models."""
    grid = {"Prox": {"mu": [0.5, 0.1]}, "solver": {"learning_rate": [0.1, 0.2]}}
    (*_, said) = best_is(of(**grid, select="validation_loss"), "learning_rate=0.1")
    assert said.startswith("Prox: other mu have the same validation_loss, so the first is taken.")
    assert said.endswith("by local_validation_loss_pooled.")


def test_interrupted_runs_select_nothing(tmp_path):
    directory = RunDirectory(tmp_path, "A")
    begin(directory, [of(Prox={"mu": [0.1, 0.5]})])
    for mu, kind in ((0.1, "interrupted"), (0.5, "ok")):
        put(directory, record(f"Prox, mu={mu}", "T", 1, losses=(mu,), outcome=Outcome(kind)))
    assert directory.selections() == {"T": {"Prox": "Prox, mu=0.5"}}


def test_own_scores_of_own_models_are_observed():
    data = fedax.FederatedData.from_arrays([np.ones(3)], test=[np.ones(2)])
    task = fedax.Task(0.0, jnp.hypot, data, scores={"mae": jnp.hypot}, modes={"mae": "min"})
    experiment = Experiment.of(**SECTIONS | {"observe": None, "algorithm": [{"name": "ditto"}]})
    observers = experiment.plan(task).arguments["observe"]
    assert fedax.observe.ClientAccuracy("mae", personal=True) in observers


@pytest.mark.slow
def test_it_is_said_everywhere(tmp_path):
    console = Console(file=io.StringIO(), width=200)
    directory = run_experiment(
        of(solver={"learning_rate": [0.0001, 0.001]}), tmp_path / "out", Display(console)
    )
    said = console.file.getvalue()
    (first, _) = directory.warnings()
    assert first.startswith("FedAvg: learning_rate = 0.001 is the largest")
    assert f"Grid: {first}" in said
    assert first in (tmp_path / "out" / "report.html").read_text()
    assert directory.line().startswith("2 algorithms, 4 settings, 1 task, 6 runs")
    assert "selection seed" in said
    assert "Selected for T by train_loss: FedAvg, learning_rate=0.001" in said


@pytest.mark.slow
@pytest.mark.parametrize("validation", [0.0, 0.25])
def test_own_models_select_among_settings_of_a_personal_method(validation, tmp_path):
    digits = {"name": "digits", "clients": 4, "partition": "shards"}
    sections = SECTIONS | {
        "task": digits | {"validation": validation},
        "schedule": {"cohort": 2, "epochs": 2, "batch_size": 10},
        "algorithm": [{"name": "fedavg"}, {"name": "ditto"}],
        "observe": None,
    }
    experiment = Experiment.of(**sections, grid={"ditto": {"lam": [0.01, 10.0]}})
    directory = run_experiment(experiment, tmp_path / "out", Display())
    shown = {record.label.split(",")[0]: record.scalars for record in directory.shown()}
    ours, theirs = (shown[name]["local_accuracy_mean"][-1] for name in ("Ditto", "FedAvg"))
    assert ours > theirs
    (judged,) = directory.grids().values()
    if validation:
        assert set(judged["metric"]) == {"local_validation_loss_pooled"}
        assert judged[judged["algorithm"] == "Ditto"]["mean"].nunique() == 2
    else:
        said = ["Ditto: other lam have the same train_loss, so the first is taken."]
        assert directory.warnings() == said
