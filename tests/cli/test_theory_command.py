"""`fedax theory`: the suggestions are those of the library's functions on the file's own task."""

import math

import numpy as np
import pytest
from typer.testing import CliRunner

import fedax
from convex import newton, smoothness
from fedax.cli import app
from fedax.cli.theory import PAPERS, suggestions
from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.theory import estimate, feddane, local_gd

FILE = """
name = "A"
rounds = 2
[task]
name = "synthetic"
alpha = 1.0
beta = 1.0
clients = 4
[solver]
name = "sgd"
learning_rate = 0.01
[schedule]
epochs = 1
batch_size = 50
[[algorithm]]
name = "dfedavgm"
topology = "ring"
[[algorithm]]
name = "feddane"
mu = 1e4
"""


@pytest.fixture(scope="module")
def plan():
    return Experiment.parse(FILE).plan()


def values(paper, plan, **options):
    return {row.quantity: row.value for row in suggestions(paper, plan, **options)}


def test_feddane(plan):
    found, losses = values("feddane", plan), estimate.Losses(plan.task)
    smooth = max(estimate.smoothness(losses, client=k) for k in range(4))
    assert found["L, the largest of a client"] == pytest.approx(smooth, rel=1e-3)
    b = feddane.dissimilarity(losses.gradients(losses.start), losses.shares)
    assert found["B"] == pytest.approx(b)
    assert found["best mu"] == pytest.approx(smooth * (4 * b**2 + 1), rel=1e-2)
    rho = feddane.decrease(mu=1e4, smoothness=smooth, dissimilarity=b)
    assert found["rho of FedDANE mu=10000.0"] == pytest.approx(rho, rel=1e-2)


def test_local_gd_on_logistic_regression(data_folder):
    if not (data_folder / "libsvm").is_dir():
        pytest.skip("no LIBSVM files")
    text = FILE.replace('name = "synthetic"\nalpha = 1.0\nbeta = 1.0', f'name = "a5a"\nfolder = "{data_folder}"')
    plan = Experiment.parse(text).plan()
    found = values("local-gd", plan, accuracy=1e-2)
    parts = [plan.task.train.client(k) for k in range(4)]
    a, signs = (np.concatenate([np.asarray(part[key], float) for part in parts]) for key in ("x", "y"))
    weights = np.concatenate([np.full(len(part["y"]), 1 / (4 * len(part["y"]))) for part in parts])
    best = newton(a, 2 * signs - 1, plan.task.l2, weights)
    assert found["|x0 - x*|"] == pytest.approx(np.linalg.norm(best))
    smooth = max(smoothness(np.asarray(part["x"], float), plan.task.l2) for part in parts)
    assert found["L, the largest of a client"] == pytest.approx(smooth, rel=1e-4)
    given = {"distance": float(np.linalg.norm(best)), "variance": found["sigma^2"], "smoothness": smooth, "accuracy": 1e-2}
    assert found["communications T/H"] == pytest.approx(local_gd.communications(**given), rel=1e-3)
    intervals = [value for name, value in found.items() if name.startswith("best H")]
    assert len(intervals) == 5
    assert intervals == sorted(intervals)
    assert 1 <= intervals[0] < intervals[-1]


@pytest.mark.parametrize("paper", sorted(PAPERS.keys() - {"local-gd"}))
def test_every_paper_says_something_finite(paper, plan):
    for row in suggestions(paper, plan, accuracy=0.01):
        assert isinstance(row.value, str) or (math.isfinite(row.value) and row.value >= -1), row
    if paper == "dfedavgm":
        assert values(paper, plan)["lambda"] == pytest.approx(fedax.Graph.ring(4).lam)


def test_command_line(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(FILE)
    result = CliRunner().invoke(app, ["theory", "fedbc", str(file)])
    assert result.exit_code == 0
    assert "lam_min" in result.output
    assert "1 + L_i" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paper": "fedban"}, r"paper: got 'fedban'; allowed: one of dfedavgm, fedaware, fedbc, feddane, local-gd. Did you"),
        ({"paper": "fedbc", "accuracy": 0.0}, r"accuracy: got 0.0; allowed: numbers in \(0, infinity\)"),
        ({"paper": "local-gd", "prices": [1.0, -1.0]}, r"price: got \[1.0, -1.0\]; allowed: numbers in \(0, infinity\)"),
    ],
)
def test_bad_input_is_refused(options, message, plan):
    with pytest.raises(InvalidInput, match=message):
        suggestions(plan=plan, **options)
