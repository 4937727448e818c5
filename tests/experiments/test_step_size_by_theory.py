"""`learning_rate = {theory = true}` in files: one number for each algorithm, stored with its runs."""

import tomllib

import numpy as np
import pytest

import fedax
from fedax.core import SpecError
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment

TEXT = """
name = "a"
rounds = 2
seeds = [0, 3]
solver = {learning_rate = {theory = true}, momentum = 0.5}
schedule = {cohort = 3, epochs = 2, batch_size = 10}
algorithm = [
    {name = "fedavg"},
    {name = "fedprox", mu = 0.5, schedule = {steps = 3}},
    {name = "fedavg", label = "own", solver = {learning_rate = 0.25}},
]
task = {name = "digits", clients = 5, model = "softmax"}
"""


def by_label(experiment):
    return {member.label: member.solver.make().learning_rate for member in experiment.members()}


def test_each_algorithm_has_the_number_of_its_schedule():
    experiment = Experiment.parse(TEXT)
    plan = experiment.plan()
    arguments = {label: plan.arguments_of(label) for label in plan.algorithms}
    expected = {
        label: fedax.theory.step_size(plan.task, options["schedule"])
        for label, options in arguments.items()
    }
    assert expected["FedAvg"] < expected["FedProx mu=0.5"]
    resolved = experiment.with_step_sizes(plan.task)
    assert by_label(resolved) == expected | {"own": 0.25}
    solvers = {label: options["solver"] for label, options in arguments.items()}
    assert {label: solver.learning_rate for label, solver in solvers.items()} == by_label(resolved)
    assert solvers["FedAvg"].momentum == solvers["own"].momentum == 0.5
    again = Experiment.parse(experiment.toml()).with_step_sizes()
    assert tomllib.loads(again.toml()) == tomllib.loads(resolved.toml())
    assert resolved.with_step_sizes() is resolved


def test_a_grid_of_schedules_has_the_smallest_number():
    text = TEXT.replace('{name = "fedavg"},', "") + "grid = {schedule = {steps = [2, 4]}}"
    experiment = Experiment.parse(text.replace("epochs = 2, ", "")).with_step_sizes()
    task = experiment.plan().task
    smallest = fedax.theory.step_size(task, fedax.Schedule(steps=4))
    assert set(by_label(experiment).values()) == {smallest, 0.25}


def test_runs_store_the_number_and_go_on_with_it(tmp_path):
    directory = run_experiment(Experiment.parse(TEXT), tmp_path / "a", Display())
    numbers = by_label(Experiment.parse(TEXT).with_step_sizes())
    for run in directory.records:
        assert run.settings["solver"]["learning_rate"] == numbers[run.label]
    text = (tmp_path / "a" / "study.toml").read_text()
    assert "theory" not in text
    written = run_experiment(Experiment.parse(text), tmp_path / "b", Display())
    (tmp_path / "a" / "runs" / directory.planned[1].id / "run.json").unlink()
    again = resume(tmp_path / "a", Display())
    for runs in (written, again, RunDirectory.load(tmp_path / "a")):
        for run, other in zip(directory.records, runs.records, strict=True):
            assert run.settings == other.settings
            for name, values in run.metrics.items():
                np.testing.assert_array_equal(values, other.metrics[name])


@pytest.mark.parametrize(
    ("addition", "line", "allowed"),
    [
        (
            "channel = {privacy = {clip = 1.0, noise = 1.0}}",
            5,
            "numbers where examples are private",
        ),
        ('engine = "flower"', 5, "numbers where examples are private or on other machines"),
    ],
)
def test_no_number_is_fitted_to_examples_that_are_not_for_the_server(addition, line, allowed):
    with pytest.raises(SpecError, match=rf"line {line}: SGD\(learning_rate=.*{allowed}"):
        Experiment.parse(TEXT + addition)
    own = TEXT.replace("{theory = true}, momentum", "0.1, momentum").replace(
        "0.25", "{theory = true}"
    )
    with pytest.raises(SpecError, match=rf"line 7: SGD\(learning_rate=.*{allowed}"):
        Experiment.parse(own + addition)
