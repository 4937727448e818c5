import csv
import json
import os
import signal

import numpy as np
import pytest

import fedax
from fedax.cli.models import select_run
from fedax.core import RunExists, WriteFailed
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment
from fedax.utils.files import write
from samples import TINY


def rows(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "tiny"
    return run_experiment(Experiment.parse(TINY), out, Display())


@pytest.mark.slow
def test_a_finished_directory(finished):
    path = finished.path
    assert finished.status == "finished"
    table = rows(path / "metrics.csv")
    assert len(table) == 2 * 2 * 3
    assert {(row["algorithm"], row["seed"]) for row in table} == {
        (a, s) for a in ("FedAvg", "FedProx mu=1") for s in "01"
    }
    first = [row for row in table if row["algorithm"] == "FedAvg" and row["seed"] == "0"]
    assert [row["round"] for row in first] == ["0", "1", "2"]
    assert int(first[2]["bits"]) == 2 * int(first[1]["bits"]) > 0
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert [run["id"] for run in summary["runs"]] == [run.id for run in finished.planned]
    run = json.loads((path / "runs" / summary["runs"][0]["id"] / "run.json").read_text())
    kept = run["versions"]
    names = "fedax python jax jaxlib equinox optax numpy platform cpus"
    assert {*names.split()} <= kept.keys()
    assert kept["fedax"] == fedax.__version__
    assert "Tiny &lt;run&gt;" in (path / "report.html").read_text()
    assert [hidden.name for hidden in path.glob(".*")] == [".lock"]


@pytest.mark.slow
def test_loading_gives_back_all_curves(finished):
    loaded = RunDirectory.load(finished.path)
    assert (loaded.title, loaded.status, loaded.notes) == (
        finished.title,
        finished.status,
        finished.notes,
    )
    for kept, made in zip(loaded.records, finished.records, strict=True):
        assert (kept.label, kept.seed, kept.outcome) == (made.label, made.seed, made.outcome)
        np.testing.assert_array_equal(
            kept.metrics["client_accuracy"], made.metrics["client_accuracy"]
        )
        assert kept.metrics["client_accuracy"].shape == (3, 4)


@pytest.mark.slow
def test_an_existing_run_is_not_touched(finished):
    before = (finished.path / "metrics.csv").read_bytes()
    other = Experiment.parse(TINY + "[stop]\nwindow = 3\n")
    with pytest.raises(RunExists, match="nothing was overwritten"):
        run_experiment(other, finished.path, Display())
    assert (finished.path / "metrics.csv").read_bytes() == before


def test_refusal_comes_before_the_data_are_made(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr(Experiment, "plan", lambda self: pytest.fail("made the task"))
    with pytest.raises(RunExists, match="is not empty"):
        run_experiment(Experiment.parse(TINY), tmp_path, Display())
    with pytest.raises(RunExists, match="is a file"):
        run_experiment(Experiment.parse(TINY), tmp_path / "notes.txt", Display())
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


class InterruptAt(Display):
    """Presses Ctrl-C when the second run has done some rounds."""

    def __init__(self, at):
        self.begun = 0
        self.at = at
        self.said = []

    def begin(self, title, rounds):
        self.begun += 1

    def observe(self, observation):
        if self.begun == 2 and observation.round == self.at:
            os.kill(os.getpid(), signal.SIGINT)

    def say(self, message):
        self.said.append(message)


@pytest.mark.slow
@pytest.mark.parametrize(("at", "ended"), [(1, "interrupted"), (2, "ok")])
def test_an_interrupted_run_leaves_a_valid_directory(tmp_path, at, ended):
    """Also where the last round was done, so that a loop of the shell ends."""
    before = signal.getsignal(signal.SIGINT)
    display = InterruptAt(at)
    directory = run_experiment(
        Experiment.parse("seeds_together = false\n" + TINY), tmp_path / "a", display
    )
    assert signal.getsignal(signal.SIGINT) is before
    assert directory.status == "interrupted"
    assert "Ctrl-C again" in display.said[0]
    loaded = RunDirectory.load(tmp_path / "a")
    assert [(run.outcome.kind, int(run.rounds[-1])) for run in loaded.records] == [
        ("ok", 2),
        (ended, at),
    ]
    assert len(rows(tmp_path / "a" / "metrics.csv")) == 3 + at + 1
    if ended == "interrupted":
        with pytest.warns(UserWarning, match="after round 1; its model is not the final"):
            select_run(loaded, "seed 1")
    assert "Interrupted: `fedax resume`" in (tmp_path / "a" / "report.html").read_text()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(WriteFailed, match="full"):
        write(tmp_path / "a.txt", "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "old")]
