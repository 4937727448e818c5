"""A stranger's first hour, by the documented commands alone: own table, model and method in one
file, everywhere."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import fedax

pytestmark = pytest.mark.slow
MPIEXEC = Path(sysconfig.get_path("scripts")) / "mpiexec"
STUDY = """\
name = "hospitals"
rounds = 5
observe_every = 5
seeds = [0, 1, 2, 3, 4]
observe = ["train_loss", "validation_loss", "test_accuracy", "client_accuracy"]

[task]
name = "table"
table = "hospitals.csv"
client = "hospital"
y = "diagnosis"
test_fraction = 0.25
validation = 0.25
model = "net.py:net"

[schedule]
batch_size = 10

[[algorithm]]
name = "fedavg"

[[algorithm]]
name = "half.py:FedHalf"

[grid]
select = "validation_loss"
seeds = [10]

[grid.solver]
learning_rate = [0.01, 0.1, 1.0]
"""
NET = """\
import fedax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, features, classes, rngs):
        self.hidden = nnx.Linear(features, 8, rngs=rngs)
        self.out = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


def net(features, classes):
    return fedax.models.nnx(lambda rngs: Net(features, classes, rngs))
"""
HALF = """\
from fedax.core import Algorithm, Upload


class FedHalf(Algorithm):
    def round(self, fed, w):
        return (w + fed.average(self.train, fed.sample(), w)) / 2

    def train(self, client, w):
        return Upload(client.minimize(start=w))
"""


@pytest.fixture
def here(tmp_path):
    pytest.importorskip("flax")
    for name, text in (("study.toml", STUDY), ("net.py", NET), ("half.py", HALF)):
        (tmp_path / name).write_text(text)
    return tmp_path


def write_table(path, hospitals):
    rng = np.random.default_rng(0)
    rows = ["hospital,age,dose,sex,diagnosis"]
    for k, name in enumerate(hospitals):
        for _ in range(40):
            dose = rng.normal()
            age = rng.normal() + k
            sex = "fm"[int(rng.integers(2))]
            ill = dose + 0.3 * age + (sex == "m") > 0.5
            rows.append(f"{name},{age:.3f},{dose:.3f},{sex},{'ill' if ill else 'healthy'}")
    path.write_text("\n".join(rows) + "\n")


def command(here, *words, before=()):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    line = [*map(str, before), sys.executable, "-m", "fedax", *map(str, words)]
    done = subprocess.run(
        line, cwd=here, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_grid_seeds_table_figure_and_prediction(here):
    write_table(here / "hospitals.csv", ["north", "east", "west"])
    said = command(here, "run", "study.toml", "--out", "runs/study")
    assert "2 algorithms, 6 settings, 1 task, 16 runs" in said
    latex = ["--table", "latex", "--metric", "test_accuracy", "--out", "table.tex"]
    command(here, "report", "runs/study", *latex)
    table = (here / "table.tex").read_text()
    assert r"\toprule" in table
    assert "FedHalf" in table
    command(here, "report", "runs/study", "--figures", "pdf")
    assert list(here.rglob("*.pdf"))
    (here / "new.csv").write_text("diagnosis,sex,dose,age\n?,f,-2,0\n?,m,2,1\n")
    run = ["--run", "FedHalf, seed 0", "--trust-code"]
    lines = command(here, "predict", "runs/study", "new.csv", *run).splitlines()
    assert lines[0] == "y,label,probability_healthy,probability_ill"
    assert [line.split(",")[1] for line in lines[1:]] == ["healthy", "ill"]


def test_the_same_file_with_mpi(here):
    pytest.importorskip("mpi4py")
    if not MPIEXEC.exists():
        pytest.skip("no mpiexec beside Python")
    write_table(here / "hospitals.csv", ["north", "east"])
    small = [
        "--set",
        "rounds=2",
        "--set",
        "seeds=[0]",
        "--set",
        "grid.solver.learning_rate=[0.1, 1.0]",
    ]
    ranks = [MPIEXEC, "-n", "2", "--allow-run-as-root", "--oversubscribe"]
    command(here, "run", "study.toml", "--out", "peers", "--engine", "mpi", *small, before=ranks)
    command(here, "run", "study.toml", "--out", "alone", *small)
    check_same_models(here / "peers", here / "alone")


def check_same_models(one, other):
    models = models_of(one)
    others = models_of(other)
    assert set(models) == set(others)
    assert len(models) == 4  # the final and the best model of each method
    for key, model in models.items():
        for name, values in model.items():
            np.testing.assert_allclose(values, others[key][name], atol=1e-5)


def models_of(folder):
    """By the run's label and the file's name; the engine is in the name of a run."""
    return {
        (json.loads((path.parent / "run.json").read_text())["label"], path.name): fedax.load_params(
            path
        )
        for path in (folder / "runs").glob("*/*.safetensors")
    }
