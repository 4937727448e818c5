"""Runs that are in the folder are not made again."""

import shutil
import tarfile

import pytest

from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.planned import planned_runs
from fedax.experiments.results.store import PACKED
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment
from samples import TINY, judge, record


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return run_experiment(Experiment.parse(TINY), tmp_path_factory.mktemp("first") / "a", Display())


class Told(Display):
    def __init__(self):
        super().__init__()
        self.begun = []
        self.said = []

    def begin(self, title, rounds):
        super().begin(title, rounds)
        self.begun.append(title.partition("] ")[2])

    def say(self, message):
        self.said.append(message)


@pytest.mark.slow
def test_a_method_and_a_seed_more_make_their_runs_alone(first, tmp_path):
    renamed = TINY.replace("Tiny <run>", "Other").replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    more = Experiment.parse(renamed + '[[algorithm]]\nname = "scaffold"\n')
    shutil.copytree(first.path, tmp_path / "a")
    told = Told()
    grown = run_experiment(more, tmp_path / "a", told)
    assert told.said == ["There already, with the models that were kept: 4 runs."]
    begun = ["FedAvg, seed 2", "FedProx mu=1, seed 2", "SCAFFOLD, seed 0, 1, 2"]
    assert told.begun == [f"Other: {run}" for run in begun]
    old = [grown.records[i] for i in (0, 1, 3, 4)]
    for run, other in zip(old, first.records, strict=True):
        assert run.metrics["train_loss"].tobytes() == other.metrics["train_loss"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_copied_runs_are_taken_up(first, tmp_path, packed):
    """Below `runs/` of a new folder, also from the archive of one."""
    if packed:
        first.keep(tmp_path / "kept")
        with tarfile.open(tmp_path / "kept" / PACKED) as archive:
            archive.extractall(tmp_path / "a" / "runs", filter="data")
    else:
        shutil.copytree(first.path / "runs", tmp_path / "a" / "runs")
    told = Told()
    directory = run_experiment(Experiment.parse(TINY), tmp_path / "a", told)
    assert told.begun == []
    assert directory.status == "finished"
    for run, other in zip(directory.records, first.records, strict=True):
        assert run.metrics["train_loss"].tobytes() == other.metrics["train_loss"].tobytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seeds = [0, 1]", "seeds = [5]"),
        ("clients = 4", "clients = 4\nseed = 1"),
        ("rounds = 2", 'rounds = 2\nobserve = ["train_loss"]'),
        ('name = "fedavg"', 'name = "fedprox"'),
        # with a personal method, the clients' own models of all methods are observed
        ("mu = 1", 'mu = 1\n[[algorithm]]\nname = "ditto"'),
    ],
)
def test_another_run_has_another_id(old, new):
    assert old in TINY
    one, other = (
        # the two seeds of the first method
        {run.id for run in planned_runs([Experiment.parse(text)])[:2]}
        for text in (TINY, TINY.replace(old, new, 1))
    )
    assert one.isdisjoint(other)


GRID = (
    TINY.replace("seeds = [0, 1]", "seeds = [0]").replace(
        "clients = 4", "clients = 4\nvalidation = 0.2"
    )
    + "[grid]\nseeds = [7]\nfedprox.mu = [0.0, 1.0]\n"
)


@pytest.mark.parametrize("observed", [None, ["train_loss"], ["validation_loss", "validation_auc"]])
def test_runs_with_another_metric_that_selects_are_others(observed):
    """It is observed, and the best model of a run is kept by it."""
    text = f"observe = {observed}\n{GRID}" if observed else GRID
    by_loss, by_auc = (
        {run.id for run in planned_runs([Experiment.parse(text + line)])}
        for line in ("", 'select = "validation_auc"\n')
    )
    assert by_loss.isdisjoint(by_auc)


def test_a_member_without_the_metric_that_selects_is_no_selection():
    experiment = Experiment.parse(GRID + 'select = "validation_auc"\n')
    runs = [record(member.label, experiment.name, 7) for member in experiment.members()]
    with pytest.raises(InvalidInput, match=r"grid.select"):
        judge(experiment, runs)
