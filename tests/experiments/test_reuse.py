"""Runs that are finished elsewhere are taken over if they are the same runs, and only then."""

import json

import numpy as np
import pytest

from fedax.core import InvalidInput
from fedax.engine.compilation.fingerprint import random_settings
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results import settings
from fedax.experiments.results.grid import select_members
from fedax.experiments.results.reuse import import_runs
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment, run_experiments
from samples import TINY, record


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
    for run, old in zip([directory.records[i] for i in (0, 1, 3, 4)], first.records, strict=True):
        assert run.metrics["train_loss"].tolist() == old.metrics["train_loss"].tolist()


@pytest.mark.slow
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


@pytest.mark.slow
def test_runs_with_more_observers_are_taken_over(tmp_path):
    """They stand under the new list, and go on there; those with fewer are passed over."""
    lists = ('["train_loss", "test_loss"]', '["test_loss"]', '["test_loss", "test_accuracy"]')
    more, fewer, others = (
        Experiment.parse(TINY.replace("rounds = 2", f"rounds = 2\nobserve = {names}"))
        for names in lists
    )
    watched = run_experiment(more, tmp_path / "a", Display())
    told = Told()
    assert import_runs([others], [watched.path], say=told.say) == {}
    assert told.said == [
        f"4 runs of {watched.path} cannot be reused: they lack test_accuracy of `observe`."
    ]
    directory = run_experiments([fewer], tmp_path / "b", "Fewer", Told(), reuse=[watched.path])
    for run, old in zip(directory.records, watched.records, strict=True):
        assert run.metrics["test_loss"].tolist() == old.metrics["test_loss"].tolist()
    assert resume(tmp_path / "b", Display()).status == "finished"
    # they take the place of a kept copy; runs that lack its metrics do not
    watched.keep(tmp_path / "kept")
    directory.keep(tmp_path / "kept")
    again = run_experiment(fewer, tmp_path / "c", Display())
    with pytest.raises(InvalidInput, match="holds 4 of 4 runs"):
        again.keep(tmp_path / "kept")


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
    for number, run in again.items():
        old = first.runs[number]
        assert run.metrics["train_loss"].tobytes() == old.metrics["train_loss"].tobytes()


@pytest.fixture
def other_jax(monkeypatch):
    """As if this process had been started with another setting of JAX."""
    here = random_settings()
    others = here | {"jax_default_matmul_precision": "highest"}
    assert others != here
    monkeypatch.setattr(settings, "random_settings", lambda: others)
    return here["jax_default_matmul_precision"]


def test_runs_with_other_settings_of_jax_are_passed_over(first, other_jax):
    said = []
    assert import_runs([Experiment.parse(TINY)], [first.path], say=said.append) == {}
    assert said == [
        f"4 runs of {first.path} cannot be reused: made with jax_default_matmul_precision = "
        f"{other_jax}. --elsewhere takes them all the same, and the tables say so."
    ]


def test_from_elsewhere_they_keep_their_settings_of_jax(first, other_jax, tmp_path):
    told, experiment = Told(), Experiment.parse(TINY)
    directory = run_experiments(
        [experiment], tmp_path / "b", "B", told, reuse=[first.path], elsewhere=True
    )
    assert told.begun == []
    for run in RunDirectory.load(directory.path).records:
        assert run.settings["jax"] == random_settings()
        assert run.versions["jax_default_matmul_precision"] == other_jax
    assert "jax_default_matmul_precision" in directory.page().versions["taken over"]
    # they differ from what runs here, and were taken over knowingly
    assert resume(directory.path, Display()).status == "finished"


GRID = (
    TINY.replace("seeds = [0, 1]", "seeds = [0]").replace(
        "clients = 4", "clients = 4\nvalidation = 0.2"
    )
    + "[grid]\nseeds = [7]\nfedprox.mu = [0.0, 1.0]\n"
)


def test_runs_without_the_metric_that_selects_are_passed_over(tmp_path):
    by_loss = Experiment.parse(GRID)
    by_auc = Experiment.parse(GRID + 'select = "validation_auc"\n')
    directory = RunDirectory.create(tmp_path / "a", "A")
    directory.configure([by_loss])
    curve = {"validation_loss": np.array([2.0, 1.0, 0.5])}
    # the numbers of a run are those of the list: FedAvg's reported one, then the grid's
    curves = [curve, curve, curve | {"validation_auc": np.array([0.5, 0.6, 0.7])}]
    labels = [member.label for member in by_loss.members()]
    numbers = [0, 1, 3]
    for number, label, seed, metrics in zip(numbers, labels, [0, 7, 7], curves, strict=True):
        directory.add(record(label, by_loss.name, seed, **metrics), number)
    assert sorted(import_runs([by_loss], [tmp_path / "a"])) == numbers
    said = []
    assert sorted(import_runs([by_auc], [tmp_path / "a"], say=said.append)) == [3]
    assert said == [
        f"2 runs of {tmp_path / 'a'} cannot be reused: they lack validation_auc, which [grid] needs."
    ]


def test_a_member_without_the_metric_that_selects_is_no_selection():
    experiment = Experiment.parse(GRID + 'select = "validation_auc"\n')
    runs = [record(member.label, experiment.name, 7) for member in experiment.members()]
    with pytest.raises(
        InvalidInput, match=r"grid.select: no run of 'FedAvg' of 'Tiny <run>' has validation_auc"
    ):
        select_members(experiment, runs)
