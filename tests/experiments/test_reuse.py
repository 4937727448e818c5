"""Runs that are finished elsewhere are taken over if they are the same runs, and only then."""

import json

import pytest

from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.reuse import import_runs
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment, run_experiments
from samples import TINY


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return run_experiment(Experiment.parse(TINY), tmp_path_factory.mktemp("first") / "a", Display())


class Told(Display):
    def __init__(self):
        self.begun, self.said = [], []

    def begin(self, title, rounds):
        self.begun.append(title)

    def say(self, message):
        self.said.append(message)


@pytest.mark.slow
def test_the_same_runs_under_other_names_are_taken_over(first, tmp_path):
    renamed = TINY.replace("Tiny <run>", "Other").replace(
        '"fedavg"', '"fedavg"\nlabel = "Averaging"'
    )
    more = Experiment.parse(
        renamed.replace("seeds = [0, 1]", "seeds = [0, 1, 2]\nseeds_together = false")
    )
    told = Told()
    directory = run_experiments([more], tmp_path / "b", "Other", told, reuse=[first.path])
    assert told.said == ["4 runs are taken over."]
    assert [title.split("] ")[1] for title in told.begun] == [
        "Averaging, seed 2",
        "FedProx mu=1, seed 2",
    ]
    assert directory.status == "finished"
    kept = [(r.task, r.label, r.seed) for r in directory.records]
    assert kept == [
        ("Other", label, seed) for label in ("Averaging", "FedProx mu=1") for seed in range(3)
    ]
    for record, old in zip(
        [directory.records[i] for i in (0, 1, 3, 4)], first.records, strict=True
    ):
        assert record.metrics["train_loss"].tolist() == old.metrics["train_loss"].tolist()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rounds = 2", "rounds = 3"),
        ("seeds = [0, 1]", "seeds = [5]"),
        ("alpha = 1.0", "alpha = 0.5"),
        ("clients = 4", "clients = 4\nseed = 1"),
        ("learning_rate = 0.05", "learning_rate = 0.06"),
        ("steps = 3", "steps = 2"),
        ("rounds = 2", 'rounds = 2\nobserve = ["train_loss"]'),
    ],
)
def test_another_run_is_not(first, old, new):
    assert old in TINY
    assert import_runs([Experiment.parse(TINY.replace(old, new))], [first.path]) == {}


def test_another_hyperparameter_is_another_run(first):
    taken = import_runs([Experiment.parse(TINY.replace("mu = 1", "mu = 2"))], [first.path])
    assert sorted(taken) == [0, 1]


def test_other_versions_are_refused(first, tmp_path):
    kept = first.path / "versions.json"
    before = kept.read_text()
    kept.write_text(json.dumps(json.loads(before) | {"jax": "0.1"}))
    try:
        with pytest.raises(InvalidInput, match=r"other versions.*jax 0\.1 there and"):
            run_experiments(
                [Experiment.parse(TINY)], tmp_path / "b", "B", Display(), reuse=[first.path]
            )
    finally:
        kept.write_text(before)
    assert not (tmp_path / "b").exists()


def test_runs_from_elsewhere_are_taken_over_if_asked_for_and_named(first, tmp_path):
    """From a copy for version control, whose own runs are partly from elsewhere too."""
    first.keep(tmp_path / "kept")
    versions = tmp_path / "kept" / "versions.json"
    versions.write_text(json.dumps(json.loads(versions.read_text()) | {"jax": "0.1"}))
    experiment = Experiment.parse(TINY)
    taken = import_runs([experiment], [tmp_path / "kept"], elsewhere=True)
    assert sorted(taken) == [0, 1, 2, 3]
    assert {record.versions["jax"] for record in taken.values()} == {"0.1"}
    told = Told()
    directory = run_experiments(
        [experiment], tmp_path / "b", "B", told, reuse=[tmp_path / "kept"], elsewhere=True
    )
    assert told.begun == []
    page = directory.page()
    assert page.versions["jax"] == directory.versions["jax"]
    assert page.versions["taken over"].startswith("4 of the runs were made elsewhere: fedax ")
    assert ", jax 0.1, " in page.versions["taken over"]
    directory.keep(tmp_path / "again")
    with pytest.raises(InvalidInput, match=r"jax 0\.1 there.*--elsewhere"):
        import_runs([experiment], [tmp_path / "again"])
    again = import_runs([experiment], [tmp_path / "again"], elsewhere=True)
    assert {record.versions["jax"] for record in again.values()} == {"0.1"}
    for number, record in again.items():
        old = first.runs[number]
        assert record.metrics["train_loss"].tobytes() == old.metrics["train_loss"].tobytes()
