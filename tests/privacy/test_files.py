"""Privacy in experiment files and run directories."""

import csv

import pytest

import fedax
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment

FILE = """
name = "private"
rounds = 4
observe = ["train_loss"]
[task]
name = "synthetic"
clients = 6
[schedule]
cohort = 3
steps = 1
weights = "equal"
[channel.privacy]
clip = [0.5]
noise = 2.0
delta = 1e-3
{more}
[[algorithm]]
name = "fedavg"
"""


@pytest.mark.slow
def test_a_file_is_private_to_its_budget(tmp_path):
    experiment = Experiment.parse(FILE.format(more="budget = 3.0"))
    plan = experiment.plan()
    privacy = plan.arguments["channel"].privacy
    assert privacy == fedax.Privacy(clip=(0.5,), noise=2.0, delta=1e-3, budget=3.0)
    assert Experiment.parse(experiment.toml()).plan().arguments["channel"].privacy == privacy
    run_experiment(experiment, tmp_path / "out", Display())
    with (tmp_path / "out" / "metrics.csv").open() as file:
        spent = [float(row["epsilon"]) for row in csv.DictReader(file)]
    schedule = plan.arguments_of("FedAvg")["schedule"]
    expected = [
        fedax.privacy.privacy_spent(
            fedax.FedAvg(), plan.task, schedule=schedule, privacy=privacy, rounds=t
        )
        for t in range(5)
    ]
    assert spent == pytest.approx([each for each in expected if each <= 3.0], rel=1e-6)
    assert 1 < len(spent) < 5
