"""Runs say with which data they were made, so that changed files are noticed."""

import shutil

import jax
import numpy as np
import pytest

import fedax
from fedax.core import RunExists
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.plan import data_hashes
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running import batches
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment


def write_files(folder, scale=1.0, last=0.0):
    folder.mkdir(exist_ok=True)
    for k in range(3):
        x = np.random.default_rng(k).normal(size=(30, 2))
        x[-1] += last
        rows = np.column_stack([x * scale, x[:, 0] > 0])
        np.savetxt(folder / f"c{k}.csv", rows, delimiter=",", header="u,v,y", comments="")
    # a session keeps the newest data; another process reads the files
    batches._newest.clear()


def experiment_of(folder, **changes):
    sections = {
        "name": "T",
        "rounds": 2,
        "seeds": [0, 1],
        "seeds_together": False,
        "observe": ["train_loss"],
        "task": {"name": "table", "table": str(folder), "columns": {"standardize": False}},
        "algorithm": [{"name": "fedavg"}],
        "solver": {"learning_rate": 0.5},
    }
    return Experiment.of(**sections | changes)


def hashes(experiment):
    return data_hashes(experiment.plan().task)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    write_files(place / "files")
    return run_experiment(experiment_of(place / "files"), place / "a", Display())


@pytest.fixture
def folder(finished):
    files = finished.path.parent / "files"
    write_files(files)
    yield files
    write_files(files)


def test_records_have_the_hashes(finished, folder):
    expected = hashes(experiment_of(folder))
    assert expected.keys() == {"examples"}
    loaded = RunDirectory.load(finished.path).records
    assert [run.settings["data"] for run in loaded] == [expected] * 2


def test_runs_of_other_data_are_others(finished, folder, tmp_path):
    shutil.copytree(finished.path / "runs", tmp_path / "a" / "runs")
    write_files(folder, scale=10.0)
    directory = run_experiment(experiment_of(folder), tmp_path / "a", Display())
    for run, old in zip(directory.records, finished.records, strict=True):
        assert run.metrics["train_loss"].tolist() != old.metrics["train_loss"].tolist()
        assert run.settings["data"] != old.settings["data"]


def test_other_data_are_refused_to_continue_with(finished, folder):
    second = finished.path / "runs" / finished.planned[1].id
    aside = finished.path / "aside"
    second.rename(aside)
    try:
        write_files(folder, last=0.5)
        with pytest.raises(RunExists, match="other settings or data"):
            resume(finished.path, Display())
        assert not second.exists()
        write_files(folder)
        assert resume(finished.path, Display()).status == "finished"
    finally:
        shutil.rmtree(second, ignore_errors=True)
        aside.rename(second)


def test_every_example_of_a_small_data_set_counts(tmp_path):
    write_files(tmp_path)
    first = hashes(experiment_of(tmp_path))
    assert hashes(experiment_of(tmp_path)) == first
    write_files(tmp_path, last=1e-3)
    assert hashes(experiment_of(tmp_path)) != first


def test_the_starting_point_counts(tmp_path):
    write_files(tmp_path / "files")
    task = {"name": "table", "table": str(tmp_path / "files"), "columns": {"standardize": False}}
    model = experiment_of(tmp_path / "files").plan().task

    def hashes_with(start):
        params = jax.tree.map(lambda leaf: leaf + start, model.start(jax.random.key(0)))
        fedax.save_params(params, tmp_path / "start.safetensors")
        options = {"params": str(tmp_path / "start.safetensors")}
        return hashes(experiment_of(tmp_path / "files", task=task | options))

    first = hashes_with(0.0)
    assert first.keys() == {"examples", "start"}
    assert hashes_with(1.0) == first | {"start": hashes_with(1.0)["start"]} != first


def test_files_on_disk_are_sampled(tmp_path):
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(5, 3)), "y": rng.integers(0, 2, 5)} for _ in range(4)]
    seen = []
    for k, shift in enumerate((0.0, 0.0, 1.0)):
        changed = [client | {"x": client["x"] + shift} for client in clients]
        stored = fedax.data.store(tmp_path / f"{k}", changed, classes=2, name="stored")
        task = fedax.task("stored", folder=str(stored))
        seen.append(data_hashes(task))
    assert seen[0] == seen[1] != seen[2]
