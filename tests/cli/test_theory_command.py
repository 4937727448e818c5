"""`fedax theory`: the suggestions are those of the library's functions on the file's own task."""

import math

import numpy as np
import pytest
from typer.testing import CliRunner

import fedax
from convex import newton, smoothness
from fedax.cli import app
from fedax.cli.theory import PAPERS, suggestions
from fedax.cli.theory_figures import save_figure
from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.report.charts import Axis, Panel, Series
from fedax.theory import estimate, feddane, local_gd
from marks import quick

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
    return {row.quantity: row.value for row in suggestions(paper, plan, **options).rows}


@pytest.mark.thorough
def test_feddane(plan):
    found, losses = values("feddane", plan), estimate.Losses(plan.task)
    smooth = max(estimate.smoothness(losses, client=k) for k in range(4))
    assert found["L, the largest of a client"] == pytest.approx(smooth, rel=1e-3)
    b = feddane.dissimilarity(losses.gradients(losses.start), losses.shares)
    assert found["B"] == pytest.approx(b)
    assert found["best mu"] == pytest.approx(smooth * (4 * b**2 + 1), rel=1e-2)
    rho = feddane.decrease(mu=1e4, smoothness=smooth, dissimilarity=b)
    assert found["rho of FedDANE mu=10000.0"] == pytest.approx(rho, rel=1e-2)


@pytest.mark.thorough
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
    panels = suggestions("local-gd", plan, accuracy=1e-2).panels
    assert [len(panel.series) for panel in panels] == [5, 4]
    cheapest = [int(series.x[series.y.argmin()]) for series in panels[0].series]
    intervals = [value for name, value in found.items() if name.startswith("best H")]
    np.testing.assert_allclose(cheapest, intervals, rtol=0.1)
    assert len(intervals) == 5
    assert intervals == sorted(intervals)
    assert 1 <= intervals[0] < intervals[-1]


@pytest.mark.parametrize("paper", quick(sorted(PAPERS.keys() - {"local-gd"}), "feddane", "fedbc"))
def test_every_paper_says_something_finite(paper, plan, tmp_path):
    found = suggestions(paper, plan, accuracy=0.01)
    for row in found.rows:
        assert isinstance(row.value, str) or (math.isfinite(row.value) and row.value >= -1), row
    for panel in found.panels:
        assert panel.series, panel.title
        assert all(np.isfinite(series.y).all() and (series.y > 0).all() for series in panel.series), panel.title
    save_figure(tmp_path / "a.svg", "T", found.panels, [])
    assert (tmp_path / "a.svg").stat().st_size > 10_000
    if paper == "dfedavgm":
        assert values(paper, plan)["lambda"] == pytest.approx(fedax.Graph.ring(4).lam)


@pytest.mark.thorough
def test_the_curves_are_the_bounds(plan):
    """The largest rho of the curve is that of the best mu, and the given mu lies on it."""
    rows, (decrease, rounds) = suggestions("feddane", plan, accuracy=0.01)
    told = {row.quantity: row.value for row in rows}
    exact, own = decrease.series[0], decrease.series[-1]
    assert exact.y.max() == pytest.approx(told["rho with it"], rel=1e-2)
    assert exact.x[exact.y.argmax()] == pytest.approx(told["best mu"], rel=0.1)
    assert (own.kind, own.x.tolist()) == ("runs", [1e4])
    assert own.y[0] == pytest.approx(told["rho of FedDANE mu=10000.0"])
    assert rounds.series[0].y.min() == pytest.approx(told["rounds"], rel=1e-2)
    _, (theorem, consensus, _) = suggestions("dfedavgm", plan, accuracy=0.01)
    whole, *parts = (series.y for series in theorem.series)
    np.testing.assert_allclose(whole, np.sum(parts, axis=0), rtol=1e-4)
    lam = fedax.Graph.ring(4).lam
    np.testing.assert_allclose(consensus.series[0].y / consensus.series[1].y, lam**2 / (1 - lam), rtol=1e-6)


def test_command_line(tmp_path):
    file, picture = tmp_path / "a.toml", tmp_path / "b" / "c.html"
    file.write_text(FILE)
    result = CliRunner().invoke(app, ["theory", "fedbc", str(file), "--figure", str(picture)])
    assert result.exit_code == 0, result.output
    assert "lam_min" in result.output
    assert "1 + L_i" in result.output
    page = picture.read_text()
    assert "Interval of the multipliers" in page
    assert "Assumption 4.3, at the start" in page


def test_other_pictures(tmp_path):
    panel = Panel("A", Axis("x"), Axis("y"), [Series("s", 0, np.arange(3.0), np.arange(3.0))])
    save_figure(tmp_path / "a.svg", "T", [panel, panel], [])
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    with pytest.raises(InvalidInput, match=r"figure: got '.*a.txt'; allowed: a file that ends in .html, .svg, .pdf or .png"):
        save_figure(tmp_path / "a.txt", "T", [panel], [])


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
