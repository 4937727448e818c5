"""Runs that are finished elsewhere are taken over if they are the same runs, and only then."""

import dataclasses
import shutil

import pytest

from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.grid import select_members
from fedax.experiments.results.planned import planned_runs
from fedax.experiments.results.store import PACKED, RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import (
    _prepare,
    find_runs,
    resume,
    run_experiment,
    run_experiments,
)
from fedax.results.store import pack, write_run
from samples import TINY, record


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return run_experiment(Experiment.parse(TINY), tmp_path_factory.mktemp("first") / "a", Display())


class Told(Display):
    def __init__(self):
        super().__init__()
        self.begun, self.said = [], []

    def begin(self, title, rounds):
        super().begin(title, rounds)
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


def taken(text, *folders, elsewhere=False, say=None):
    """The label and seed of the runs of an experiment that folders have."""
    (experiment,), _ = _prepare([Experiment.parse(text)])
    planned = planned_runs([experiment])
    found = find_runs(planned, folders, elsewhere, say or [].append)
    return {(run.member.label, run.seed): found[run.id] for run in planned if run.id in found}


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
    assert taken(TINY.replace(old, new), first.path) == {}


def test_another_hyperparameter_is_another_run(first):
    found = taken(TINY.replace("mu = 1", "mu = 2"), first.path)
    assert list(found) == [("FedAvg", 0), ("FedAvg", 1)]


def change_versions(folder, **changes):
    directory = RunDirectory.load(folder)
    return {
        name: dataclasses.replace(run, versions=run.versions | changes)
        for name, run in directory.runs.items()
    }


def test_other_versions_are_refused(first, tmp_path):
    shutil.copytree(first.path, tmp_path / "a")
    for name, run in change_versions(tmp_path / "a", jax="0.1").items():
        write_run(tmp_path / "a" / "runs" / name, run)
    with pytest.raises(InvalidInput, match=r"other versions.*jax 0\.1 then and"):
        run_experiments(
            [Experiment.parse(TINY)], tmp_path / "b", "B", Display(), reuse=[tmp_path / "a"]
        )
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("changes", [{"jax": "0.1"}, {"jax_default_matmul_precision": "highest"}])
def test_runs_from_elsewhere_are_taken_over_if_asked_for_and_named(first, tmp_path, changes):
    """From a copy for version control, whose own runs are partly from elsewhere too."""
    first.keep(tmp_path / "kept")
    (tmp_path / "kept" / PACKED).write_bytes(pack(change_versions(first.path, **changes)))
    told, kept = Told(), [tmp_path / "kept"]
    directory = run_experiments(
        [Experiment.parse(TINY)], tmp_path / "b", "B", told, reuse=kept, elsewhere=True
    )
    assert told.begun == []
    page = directory.page()
    (name, value), *_ = changes.items()
    assert page.versions[name] == directory.versions[name] != value
    assert page.versions["taken over"].startswith("4 of the runs were made elsewhere: fedax ")
    assert f", {name} {value}" in page.versions["taken over"]
    directory.keep(tmp_path / "again")
    with pytest.raises(InvalidInput, match=rf"{name} {value} then.*--elsewhere"):
        taken(TINY, tmp_path / "again")
    for run, old in zip(
        taken(TINY, tmp_path / "again", elsewhere=True).values(), first.records, strict=True
    ):
        assert run.versions[name] == value
        assert run.metrics["train_loss"].tobytes() == old.metrics["train_loss"].tobytes()
    # they differ from what runs here, and were taken over knowingly
    assert resume(directory.path, Display()).status == "finished"


def test_a_commit_makes_no_other_versions(first, tmp_path):
    for name, run in change_versions(first.path, commit="0123").items():
        write_run(tmp_path / "a" / "runs" / name, run)
    for name in ("study.toml", "summary.json"):
        shutil.copy(first.path / name, tmp_path / "a")
    assert [run.versions["commit"] for run in taken(TINY, tmp_path / "a").values()] == ["0123"] * 4


@pytest.mark.slow
def test_a_method_more_makes_its_runs_alone(first, tmp_path):
    """In the same folder, and from two folders together: all as in one go."""
    more = Experiment.parse(TINY + '[[algorithm]]\nname = "scaffold"\n')
    shutil.copytree(first.path, tmp_path / "a")
    told = Told()
    grown = run_experiment(more, tmp_path / "a", told)
    assert told.said == ["4 runs are there already."]
    assert [title.split("] ")[1] for title in told.begun] == ["SCAFFOLD, seeds 0, 1"]
    head = TINY[: TINY.index("[[algorithm]]")]
    alone = run_experiment(
        Experiment.parse(head + '[[algorithm]]\nname = "scaffold"\n'), tmp_path / "b", Display()
    )
    told, folders = Told(), [first.path, alone.path]
    together = run_experiments([more], tmp_path / "c", "C", told, reuse=folders)
    assert told.begun == []
    for run, other in zip(grown.records, together.records, strict=True):
        assert (run.label, run.seed) == (other.label, other.seed)
        assert run.metrics["train_loss"].tobytes() == other.metrics["train_loss"].tobytes()


@pytest.mark.slow
def test_folders_are_put_together_by_copying(first, tmp_path):
    """`runs/` of one folder into another."""
    more = Experiment.parse(TINY.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    last = Experiment.parse(TINY.replace("seeds = [0, 1]", "seeds = [2]"))
    other = run_experiment(last, tmp_path / "b", Display())
    shutil.copytree(first.path, tmp_path / "a")
    shutil.copytree(other.path / "runs", tmp_path / "a" / "runs", dirs_exist_ok=True)
    told = Told()
    assert len(run_experiment(more, tmp_path / "a", told).records) == 6
    assert told.begun == []


GRID = (
    TINY.replace("seeds = [0, 1]", "seeds = [0]").replace(
        "clients = 4", "clients = 4\nvalidation = 0.2"
    )
    + "[grid]\nseeds = [7]\nfedprox.mu = [0.0, 1.0]\n"
)


def test_runs_without_the_metric_that_selects_are_others():
    by_loss, by_auc = (
        {run.id for run in planned_runs([Experiment.parse(GRID + line)])}
        for line in ("", 'select = "validation_auc"\n')
    )
    assert by_loss.isdisjoint(by_auc)


def test_a_member_without_the_metric_that_selects_is_no_selection():
    experiment = Experiment.parse(GRID + 'select = "validation_auc"\n')
    runs = [record(member.label, experiment.name, 7) for member in experiment.members()]
    with pytest.raises(
        InvalidInput, match=r"grid.select: no run of 'FedAvg' of 'Tiny <run>' has validation_auc"
    ):
        select_members(experiment, runs)
