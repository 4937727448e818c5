"""The folder that `fedax deploy init` makes: code of several files."""

import shutil

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import jax

import commands
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.user_code import references
from fedax.flower.deploy import folder as made
from fedax.flower.deploy.worker import worker_for

TASK = """
import numpy as np
import fedax

ORIGIN = "task"

def task(clients: int = 2):
    # sites of unequal sizes
    data = {f"site {k}": {"x": np.ones((3 + k, 2), np.float32), "y": np.zeros(3 + k, np.float32)}
            for k in range(clients)}
    return fedax.Task(
        np.zeros(2, np.float32), lambda w, e: (e["x"] @ w - e["y"]) ** 2, data)
"""
METHOD = """
from fedax.core import Upload
import fedax

ORIGIN = "method"
task = None

class Mine(fedax.FedAvg):
    pass
"""
FILE = """name = "it's mine"  # Anna's file, not "t/code.py:task"
rounds = 2
observe = ["train_loss"]
[task]
name = "{task}"
[[algorithm]]
name = '{method}'
"""


@pytest.fixture
def init(tmp_path, monkeypatch):
    """`fedax deploy init` in the folder of the test."""
    monkeypatch.chdir(tmp_path)

    def call(folder, file, *options):
        with jax.enable_x64(False):
            return commands.call("deploy", "init", str(file), "--out", str(folder), *options)

    return call


def write_experiment(folder, task="t/code.py:task", method="m/code.py:Mine"):
    for name, code in (("t", TASK), ("m", METHOD)):
        (folder / name).mkdir(parents=True)
        (folder / name / "code.py").write_text(code)
    path = folder / "mine.toml"
    path.write_text(FILE.format(task=task, method=method))
    return path


@pytest.mark.parametrize("changes", [(), ("--set", "rounds=3")], ids=["text", "set"])
@pytest.mark.parametrize("place", ["plain", "Anna's exp", 'the "new" one'])
def test_files_of_equal_names_are_copied_under_their_own(
    place, changes, init, tmp_path, monkeypatch
):
    """The method's file defines the task's name too; nothing leads back to the original files."""
    file = write_experiment(tmp_path / place)
    done = init("my_d", file.relative_to(tmp_path), *changes)
    assert done.exit_code == 0, done.output
    shutil.rmtree(tmp_path / place)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder = tmp_path / "my_d"
    copies = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert sorted(copies.values()) == sorted([TASK, METHOD])
    assert "code.py" in copies
    with jax.enable_x64(False):
        site = made.pack(folder, 1, "")
        experiment = Experiment.read(site / "experiment.toml")
        assert all(name.startswith(f"{site}/") for name in references(experiment.resolved()))
        assert experiment.rounds == (3 if changes else 2)
        plan = experiment.plan()
        assert [type(method).__name__ for method in plan.algorithms.values()] == ["Mine"]
        assert plan.task.train.offsets.tolist() == [0, 3, 7]
        assert list(plan.task.names) == ["site 0", "site 1"]
        assert worker_for(site).task.train.total == 4
