"""Warnings where numbers cannot mean anything, and the last line of every command."""

import dataclasses

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import fedax
from commands import call, succeed
from fedax import cli
from fedax.core.history import Outcome
from fedax.experiments.results.store import RunDirectory
from fedax.results.doubts import find_doubts
from fedax.results.record import Record

FILE = """
import numpy as np
import fedax


def hospitals(scaled: bool = True, blank: bool = False):
    rng = np.random.default_rng(0)
    clients = {}
    for k, rows in enumerate((40, 80, 120)):
        sick = (np.arange(rows) % 4 == 0).astype(int)
        columns = [rng.normal(60, 20, rows), rng.normal(25, 5, rows), sick + rng.normal(0, 0.1, rows)]
        x = np.stack(columns, axis=1)
        if scaled:
            x = (x - [60, 25, 0.25]) / [20, 5, 0.5]
        if blank:
            x = np.zeros_like(x)
        clients[f"hospital {k}"] = {"x": x.astype("float32"), "y": sick}
    data = fedax.data.FederatedData.from_arrays(clients, classes=2, test=clients)
    return fedax.classification(data, "softmax")
"""
MAJORITY = (
    "no method is better than always answering the most frequent class, which is right for 75.0"
)


@pytest.fixture(autouse=True)
def _files(tmp_path):
    (tmp_path / "own.py").write_text(FILE)


def compare(task="own.py:hospitals", rate=0.5, seeds="0,1", rounds=20):
    words = ["compare", "fedavg", "fedprox:mu=0.01", "--task", task, "--seeds", seeds]
    words += ["--rounds", str(rounds), "--solver", f"sgd:learning_rate={rate}", "--out", "a"]
    words += ["--schedule", "cohort=2,steps=5", "--observe", "train_loss,test_accuracy"]
    return succeed(*words)


def test_methods_that_answer_one_class_are_said(tmp_path):
    done = compare(task="own.py:hospitals:blank=true")
    assert f": {MAJORITY}" in done.stdout
    assert MAJORITY in (tmp_path / "a" / "report.html").read_text()
    again = call("report", "a")
    assert MAJORITY in again.stderr
    assert [MAJORITY in text for text in RunDirectory.load(tmp_path / "a").doubts()] == [True]


def test_methods_that_learn_are_not_doubted(tmp_path):
    done = compare()
    assert "Warning" not in done.output
    records = RunDirectory.load(tmp_path / "a").records
    assert min(record.metrics["test_accuracy"][-1] for record in records) > 0.9


def test_personalized_methods_are_judged_by_the_models_that_clients_use():
    """Runs without a final value are not judged."""
    finals = {"test_accuracy": np.array([0.5]), "local_accuracy_pooled": np.array([0.9])}
    nothing = np.zeros(1)
    settings = {"majority": 0.5}
    run = Record("T", "A", 0, 0, nothing, nothing, nothing, finals, Outcome(), settings=settings)
    assert find_doubts([run]) == []
    stopped = dataclasses.replace(run, settings={"majority": 1.0}, outcome=Outcome("interrupted"))
    assert find_doubts([stopped]) == []


def test_equal_runs_are_said():
    done = compare(rounds=0, seeds="0")
    assert "all 2 runs end with the same numbers" in done.stdout


@pytest.mark.filterwarnings("default")
def test_ranges_that_differ_are_said():
    done = compare(task="own.py:hospitals:scaled=false", rounds=1, seeds="0")
    (line,) = {line for line in done.stderr.splitlines() if line.startswith("Warning")}
    assert "the columns of x have ranges from 1" in line
    assert "divide by its standard deviation" in line


def test_images_and_constant_columns_have_no_unequal_ranges():
    x = np.zeros((4, 100), np.float32)
    x[:, 1] = [0, 1, 2, 3]
    wide = np.linspace(0, 1, 4 * 101).reshape(4, 101).astype(np.float32)
    wide[:, 0] *= 1000
    for features in (x, wide):
        parts = [{"x": features, "y": np.arange(4) % 2}]
        data = fedax.data.FederatedData.from_arrays(parts, classes=2)
        fedax.classification(data, "softmax")  # warnings are errors in tests


def leaves(command, *names):
    """All commands that do something, with their names."""
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, *names, name)
    if not hasattr(command, "commands"):
        yield names, command


def test_there_are_few_commands_and_options_and_their_help_fits_a_screen():
    root = typer.main.get_command(cli.app)
    commands = dict(leaves(root))
    options = [
        option
        for command in [root, *commands.values()]
        for option in command.params
        if option.param_type_name == "option" and option.name != "help"
    ]
    assert len(commands) <= 31
    assert len(options) <= 75
    for names in [(), *commands]:
        done = CliRunner(env={"COLUMNS": "80"}).invoke(cli.app, [*names, "--help"])
        assert len(done.stdout.splitlines()) <= 40, names


@pytest.mark.slow
def test_commands_end_with_what_to_do_next():
    (line,) = compare(rounds=0).stderr.splitlines()[-1:]
    assert line == "Next: `fedax report a --table latex` prints a table for a paper."
    for words in (
        ["report", "a"],
        ["report", "a", "--table", "csv"],
        ["cite", "a"],
        ["reproduce"],
        ["algorithms", "fedavg"],
        ["graph", "ring"],
        ["doctor"],
        ["data", "describe", "digits"],
        ["new", "experiment", "mine.toml"],
        ["validate", "mine.toml"],
    ):
        done = succeed(*words)
        assert done.stderr.splitlines()[-1].startswith("Next: `fedax "), words
        assert "Next: " not in done.stdout, words
