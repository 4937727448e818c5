"""`optimum` in experiment files: the minimiser by Newton's method, against NumPy's."""

import numpy as np
import pytest

import fedax
from convex import newton, value
from fedax.core import SpecError
from fedax.experiments.config.experiment import Experiment

FILE = """
name = "A"
rounds = 2
observe = ["optimum", "curvature", "objective"]
solver = {learning_rate = {theory = true}}
schedule = {steps = 3, batch_size = "full", weights = "equal"}
algorithm = [{name = "localgd", returned = "mean"}]
task = {name = "libsvm", file = "own", folder = "FOLDER", clients = 2, features = 3}
"""


@pytest.fixture
def folder(tmp_path):
    """A LIBSVM file of forty examples with labels by a noisy rule."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).round(3)
    y = np.sign(x @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=40)).astype(int)
    rows = [
        f"{label:+d} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row))
        for label, row in zip(y, x, strict=True)
    ]
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "own").write_text("\n".join(rows) + "\n")
    return tmp_path


@pytest.mark.slow
def test_theorem_1_live_from_a_file(folder):
    plan = Experiment.parse(FILE.replace("FOLDER", str(folder))).plan()
    ((label, method),) = plan.algorithms.items()
    history = fedax.run(method, plan.task, **plan.arguments_of(label))
    parts = [plan.task.train[k] for k in range(2)]
    a, signs = (
        np.concatenate([np.asarray(part[key], float) for part in parts]) for key in ("x", "y")
    )
    weights = np.concatenate([np.full(len(part["y"]), 1 / (2 * len(part["y"]))) for part in parts])
    best = newton(a, 2 * signs - 1, plan.task.l2, weights)
    assert history.metrics["distance"][0] == pytest.approx(np.linalg.norm(best), rel=1e-6)
    gap = value(np.zeros(3), a, 2 * signs - 1, plan.task.l2, weights) - value(
        best, a, 2 * signs - 1, plan.task.l2, weights
    )
    assert history.metrics["optimum_gap"][0] == pytest.approx(gap, rel=1e-6)
    assert "objective_gap" in history.metrics  # the minimum is known then


@pytest.mark.slow
def test_objectives_that_differ_are_refused():
    text = FILE.partition("task =")[0] + 'task = {name = "synthetic", clients = 2}'
    two = text.replace('"mean"}', '"mean"}, {name = "dfedavgm"}').replace(
        'weights = "equal"', 'weights = "size"'
    )
    with pytest.raises(SpecError, match="allowed: algorithms with one objective"):
        Experiment.parse(two).plan()
