import csv
import io
import json
import os
import signal

import numpy as np
import pytest
from rich.console import Console

import fedax
from fedax.cli.report import report
from fedax.cli.summary import print_summary
from fedax.core import InvalidInput, RunExists
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory, fresh, slug
from fedax.experiments.running import demo
from fedax.experiments.running.progress import Display, summary_table
from fedax.experiments.running.progress import summary_line as line_about
from fedax.experiments.running.runner import run_experiment
from fedax.results.compare import compare_runs
from fedax.utils.files import write
from samples import TINY, record


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
    assert [run["outcome"] for run in summary["runs"]] == ["ok"] * 4
    assert [run["id"] for run in summary["runs"]] == [run.id for run in finished.planned]
    run = json.loads((path / "runs" / summary["runs"][0]["id"] / "run.json").read_text())
    kept = run["versions"]
    assert {
        "fedax",
        "python",
        "jax",
        "jaxlib",
        "equinox",
        "optax",
        "numpy",
        "platform",
        "cpus",
    } <= kept.keys()
    assert kept["fedax"] == fedax.__version__
    assert "Tiny &lt;run&gt;" in (path / "report.html").read_text()
    assert not list(path.glob(".*"))


@pytest.mark.slow
def test_the_kept_configuration_reproduces_the_run(finished, tmp_path):
    again = run_experiment(
        Experiment.read(finished.path / "study.toml"), tmp_path / "again", Display()
    )
    for first, second in zip(finished.records, again.records, strict=True):
        np.testing.assert_array_equal(first.metrics["train_loss"], second.metrics["train_loss"])


@pytest.mark.slow
def test_loading_gives_back_all_curves(finished):
    loaded = RunDirectory.load(finished.path)
    assert (loaded.title, loaded.status, loaded.notes) == (
        finished.title,
        finished.status,
        finished.notes,
    )
    for kept, made in zip(loaded.records, finished.records, strict=True):
        assert (kept.task, kept.label, kept.seed, kept.draw, kept.outcome) == (
            made.task,
            made.label,
            made.seed,
            0,
            made.outcome,
        )
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


def test_nothing_is_written_for_an_experiment_that_does_not_fit(tmp_path):
    with pytest.raises(InvalidInput, match="number of clients"):
        run_experiment(
            Experiment.parse(TINY.replace("cohort = 2", "cohort = 9")), tmp_path / "a", Display()
        )
    assert not (tmp_path / "a").exists()


class InterruptAt(Display):
    """Presses Ctrl-C when the second run has done its first round."""

    def __init__(self):
        self.begun, self.said = 0, []

    def begin(self, title, rounds):
        self.begun += 1

    def observe(self, observation):
        if self.begun == 2 and observation.round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    def say(self, message):
        self.said.append(message)


@pytest.mark.slow
def test_an_interrupted_run_leaves_a_valid_directory(tmp_path):
    before, display = signal.getsignal(signal.SIGINT), InterruptAt()
    directory = run_experiment(
        Experiment.parse("seeds_together = false\n" + TINY), tmp_path / "a", display
    )
    assert signal.getsignal(signal.SIGINT) is before
    assert directory.status == "interrupted"
    assert "Ctrl-C again" in display.said[0]
    loaded = RunDirectory.load(tmp_path / "a")
    assert [(run.outcome.kind, int(run.rounds[-1])) for run in loaded.records] == [
        ("ok", 2),
        ("interrupted", 1),
    ]
    assert len(rows(tmp_path / "a" / "metrics.csv")) == 3 + 2
    assert "Interrupted before all runs were done" in (tmp_path / "a" / "report.html").read_text()


def test_several_folders_are_not_kept(tmp_path):
    """--keep copies one run directory; it is not ignored elsewhere."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "runs.tar.xz").touch()
    with pytest.raises(InvalidInput, match=r"--keep: got .*; allowed: one run directory"):
        report([tmp_path / "a", tmp_path / "b"], keep=tmp_path / "kept")
    with pytest.raises(InvalidInput, match=r"a: is made by --keep"):
        report([tmp_path / "a"], keep=tmp_path / "kept")
    with pytest.raises(InvalidInput, match="missing: not a run directory"):
        report([tmp_path / "missing"], keep=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write(tmp_path / "a.txt", "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "old")]


def test_damaged_or_foreign_folders_are_not_loaded(tmp_path):
    with pytest.raises(InvalidInput, match="not a run directory"):
        RunDirectory.load(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(InvalidInput, match="damaged files"):
        RunDirectory.load(tmp_path)


def test_names_of_folders(tmp_path):
    assert [slug("Synthetic (0.5, 0.5)"), slug("?")] == ["synthetic-0-5-0-5", "run"]
    (tmp_path / "a").mkdir()
    assert [fresh(tmp_path, "b").name, fresh(tmp_path, "a").name] == ["b", "a-2"]


def test_the_demo_compares_what_it_says():
    names = [
        [section.name for section in experiment.algorithm] for experiment in demo.experiments()
    ]
    assert names == [["fedavg", "fedprox", "feddane", "feddane", "fedbc"]] * 3
    schedule = demo.experiments()[1].resolved()["schedule"]
    assert (schedule["cohort"], schedule["epochs"], schedule["batch_size"]) == (10, 20, 10)


def test_a_run_that_ends_above_its_start_has_diverged():
    runs = [
        record(losses=losses) for losses in ((2.0, 9.0, 1.0), (2.0, 1.0, 3.0), (2.0, 1.0, np.nan))
    ]
    assert [run.diverged for run in runs] == [False, True, True]
    assert [run.ending for run in runs] == ["ok", *["diverged: above its initial loss"] * 2]
    row = compare_runs(runs).iloc[0]
    assert (row["outcome"], row["ok"]) == ("1 ok, 2 diverged", False)


@pytest.mark.slow
def test_plain_lines_for_logs(tmp_path):
    stream = io.StringIO()
    lines = Display(Console(file=stream, width=200))
    lines.every = 0.0
    run_experiment(Experiment.parse(TINY.replace("seeds = [0, 1]", "")), tmp_path / "a", lines)
    text = stream.getvalue()
    assert "  [1/2] FedAvg: round 1/2, " in text
    assert "rounds/s, loss " in text
    assert "[2/2] FedProx mu=1: 2 rounds in " in text


def test_the_demo_says_how_to_read_its_tables(tmp_path):
    """Before the path of the report: what was tuned, what the worst tenth is, why FedProx is slow."""
    directory = RunDirectory.create(tmp_path / "demo", "A demo")
    directory.configure([demo.experiments()[0].model_copy(update={"rounds": 1})])
    directory.close("finished")
    shown = io.StringIO()
    print_summary(directory, Console(file=shown, width=80), demo.READING)
    text = " ".join(shown.getvalue().split())
    assert text.index("Worst tenth: the mean accuracy over") < text.index("Report: ")
    assert "Do not rank the methods" in text
    assert all(name in text for name in ("FedProx has mu = 1", "FedBC weighs", "FedDANE's mu"))


def test_the_longest_label_of_the_demo_fits_a_terminal_of_80_columns():
    shown = io.StringIO()
    Console(file=shown, width=80).print(
        summary_table("t", [record("FedDANE as released")], wide=False)
    )
    assert "FedDANE as released" in shown.getvalue()


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (60, ["FedProx", "mu=1,", "learning_rat", "e=0.05"]),
        (80, ["FedProx mu=1,", "learning_rate=0.05"]),
        (120, ["FedProx mu=1, learning_rate=0.05"]),
    ],
)
def test_a_narrow_table_breaks_labels_between_words(width, lines):
    shown = io.StringIO()
    runs = [record("FedProx mu=1, learning_rate=0.05", seed=seed) for seed in range(3)]
    Console(file=shown, width=width).print(summary_table("t", runs, wide=False))
    body, note = shown.getvalue().partition("── \n")[2].split("Means and", 1)
    assert "3 runs" in note
    rows = body.splitlines()
    assert [row.strip().split("  ")[0] for row in rows if row.strip()] == lines


def test_a_line_about_several_runs_is_about_all_of_them():
    good, worse = record(losses=(2.0, 1.0, 0.5)), record(losses=(2.0, 1.0, 0.75), seed=1)
    lost = record(losses=(2.0, 9.0, np.nan), seed=2)
    assert line_about("t", [good]) == "t: 2 rounds in 1.0 s, loss 0.5"
    assert line_about("t", [good, worse]) == "t: 2 rounds in 2.0 s, loss 0.5 to 0.75"
    text = line_about("t", [good, lost])
    assert text == "t: 2 rounds in 2.0 s, loss 0.5, diverged: above its initial loss (1 of 2 runs)"
    assert "loss nan" in line_about("t", [lost])
