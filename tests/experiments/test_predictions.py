"""Predictions and exports of run directories: the data they were made with, and the form of
tables.
"""

import csv
import io
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import commands
import fedax
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.running import batches
from fedax.experiments.running.predictions import examples_of, predictions_csv
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import run_experiment

STUDY = """
name = "study"
rounds = 3
observe = ["train_loss"]
[task]
name = "table"
table = "data"
y = "relapse"
[solver]
learning_rate = 0.5
[[algorithm]]
name = "fedavg"
"""


def write_clients_files(folder, columns=("age", "weight"), shift=0.0):
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in (("ann", 12), ("bob", 5)):
        rng = np.random.default_rng(size)
        values = {
            "age": rng.normal(size=size) + shift * np.arange(size),
            "weight": rng.normal(size=size),
        }
        rows = [
            [f"{values[c][i]:.4f}" for c in columns] + [("no", "yes")[int(values["weight"][i] > 0)]]
            for i in range(size)
        ]
        lines = [",".join([*columns, "relapse"]), *map(",".join, rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("study")
    write_clients_files(place / "data")
    (place / "new.csv").write_text(
        "age,weight,relapse,y,label\n0,2,yes,17,a\n0,-2,?,NA,b\n0,-2,,,c\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        run_experiment(Experiment.parse(STUDY), place / "run", Display())
    return place


@pytest.fixture
def place(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def call(*arguments):
    batches._newest.clear()
    return commands.call(*arguments)


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


CHANGED = "task .*: its examples are not those that run [0-9a-f]+ was made with"


@pytest.mark.slow
def test_no_column_of_a_table_is_lost(place):
    result = call("predict", "run", "new.csv")
    assert re.sub(r",0\.\d+", "", result.stdout).splitlines() == [
        "given_y,y,given_label,label,probability_no,probability_yes",
        "17,yes,a,yes",
        "NA,?,b,no",
        ",,c,no",
    ]


@pytest.mark.parametrize("change", ["order", "values"])
def test_a_table_is_read_by_the_encoding_of_the_run(place, change):
    """Also where the files of its task have changed since; a split of the task is refused then."""
    expected = call("predict", "run", "new.csv").stdout
    columns = ("weight", "age") if change == "order" else ("age", "weight")
    write_clients_files(place / "data", columns, shift=float(change == "values"))
    assert call("predict", "run", "new.csv").stdout == expected
    (place / "other.csv").write_text("weight,more,age\n2,a,0\n-2,b,0\n-2,c,0\n")
    rows = rows_of(call("predict", "run", "other.csv").stdout)
    assert [row["probability_yes"] for row in rows] == [
        row["probability_yes"] for row in rows_of(expected)
    ]
    result = call("predict", "run", "train")
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(CHANGED, result.stderr), result.stderr


def task_of(predict, **arrays):
    clients = [{"x": np.ones((n, 2)), "y": np.ones(n), **arrays} for n in (3, 1)]
    return fedax.Task(
        np.zeros(2), lambda w, e: (e["x"] @ w - e["y"]) ** 2, clients, predictor=predict
    )


OUTPUTS = {
    "one column": (lambda w, e: (e["x"] @ w)[:, None], "prediction", "5"),
    "a vector": (lambda w, e: e["x"] @ w, "prediction", "5"),
    "outside": (lambda w, e: e["x"] * w[None], "prediction_0,prediction_1", "1,4"),
    "no sum": (lambda w, e: e["x"] * w[None] / 8, "prediction_0,prediction_1", "0.125,0.5"),
    "probabilities": (
        lambda w, e: jax.nn.softmax(e["x"] * 0.0),
        "label,probability_0,probability_1",
        "0,0.5,0.5",
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_only_probabilities_are_a_classification(tmp_path, name):
    predict, header, line = OUTPUTS[name]
    np.savez(tmp_path / "new.npz", x=np.float32([[1, 2]]), y=np.float32([6.2]))
    examples = examples_of(tmp_path / "new.npz")
    text = predictions_csv(task_of(predict), jnp.array([1.0, 2.0]), examples)
    assert text == f"y,{header}\n6.2,{line}\n"


def test_predictions_of_a_model_that_diverged_have_no_label(tmp_path):
    task = task_of(lambda w, e: jax.nn.softmax(e["x"] * w[None]))
    np.savez(tmp_path / "new.npz", x=np.ones((1, 2), np.float32))
    text = predictions_csv(task, jnp.array([np.nan, 1.0]), examples_of(tmp_path / "new.npz"))
    assert text.splitlines() == ["label,probability_0,probability_1", ",nan,nan"]
