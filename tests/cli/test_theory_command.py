"""`fedax theory`: the suggestions are those of the library's functions on the file's own task."""

import math

import numpy as np
import pytest

import fedax
from commands import succeed
from convex import newton, smoothness
from fedax.cli.theory import methods_of
from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.theory import advice, local_gd
from fedax.theory.advice import PAPERS
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
epochs = [1, 2]
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


def suggestions(paper, plan, **options):
    return advice.suggestions(paper, plan.task, methods_of(plan), **options)


def values(paper, plan, **options):
    return {row.quantity: row.value for row in suggestions(paper, plan, **options)}


def closed_form(plan):
    """Each client's smoothness of softmax regression, in NumPy."""
    parts = [np.asarray(plan.task.train[k]["x"], float) for k in range(plan.task.train.clients)]
    wide = [np.concatenate([x, np.ones((len(x), 1))], axis=1) for x in parts]
    return np.array([np.linalg.eigvalsh(x.T @ x)[-1] / (2 * len(x)) for x in wide])


def largest_rate(smooth, steps, theta):
    """The end of gamma > 0 in gamma = eta S - 128 K^2 eta^2 (eta S L^2 + L / 2) ends, by bisection,
    with S summed term by term."""
    worth = sum((1 - theta**j) / (1 - theta) for j in range(1, steps + 1))
    low = 0.0
    high = 1 / (8 * smooth * steps)
    for _ in range(200):
        eta = (low + high) / 2
        gamma = eta * worth - 128 * steps**2 * eta**2 * (eta * worth * smooth**2 + smooth / 2)
        low, high = (eta, high) if gamma > 0 else (low, eta)
    return low


@pytest.mark.slow
@pytest.mark.parametrize("where", ["common", "own"])
@pytest.mark.parametrize("theta", [0.0, 0.9])
def test_dfedavgm_has_the_momentum_of_its_solver(theta, where):
    """Common or the algorithm's own; C_2 written out."""
    text = FILE if where == "own" else FILE.replace("[schedule]", f"momentum = {theta}\n[schedule]")
    text = (
        text
        if where == "common"
        else text.replace('"ring"', f'"ring"\nsolver = {{momentum = {theta}}}')
    )
    found = values("dfedavgm", Experiment.parse(text).plan())
    smooth, k, noise = (
        found[name]
        for name in ("L, the largest of a client", "K", "sigma_l^2, the largest of a client")
    )
    b = found["B"]
    between = found["sigma_g^2"]
    lam = found["lambda"]
    eta = largest_rate(smooth, k, theta)
    assert found["largest eta"] == pytest.approx(eta, rel=1e-6)
    inertia = 64 * k**2 * theta**2 / (1 - theta) ** 2 * (noise + b**2)
    c2 = 8 * k * noise + 32 * k**2 * between + inertia + 32 * k**2 * b**2
    bound = (lam / (1 - lam)) ** 2 * c2 * (eta / 2) ** 2
    assert found["consensus, mean square"] == pytest.approx(bound, rel=1e-6)
    assert found["theta"] == theta


@pytest.mark.slow
def test_feddane_with_one_mu_for_each_device():
    """Theorem 7 written out: exact solutions, L of f at most the mean of the devices' by size."""
    mu = [1e3, 2e4, 3e3, 5e4]
    plan = Experiment.parse(FILE.replace("mu = 1e4", f'mu = {mu}\nlabel = "each"')).plan()
    rows = {row.quantity: row for row in suggestions("feddane", plan)}
    own = closed_form(plan)
    b = rows["B"].value
    sizes = np.asarray(plan.task.train.sizes, float)
    p = sizes / sizes.sum()
    m = np.array(mu)
    whole = p @ own
    right = p @ (1 / m - whole / m**2 - 1.5 * own / m**2) - (b**2 - 1) * (
        p @ (whole / m**2 + own / m**2)
    )
    assert rows["rho of each"].value == pytest.approx(right, rel=1e-3)
    assert rows["rho of each"].source == "Theorem 7, corrected, if solved exactly: a decrease"


@pytest.mark.slow
def test_local_gd_on_logistic_regression(data_folder):
    if not (data_folder / "libsvm").is_dir():
        pytest.skip("no LIBSVM files")
    text = FILE.replace(
        'name = "synthetic"\nalpha = 1.0\nbeta = 1.0', f'name = "a5a"\nfolder = "{data_folder}"'
    )
    plan = Experiment.parse(text).plan()
    found = values("local-gd", plan, accuracy=1e-2)
    parts = [plan.task.train[k] for k in range(4)]
    a, signs = (
        np.concatenate([np.asarray(part[key], float) for part in parts]) for key in ("x", "y")
    )
    weights = np.concatenate([np.full(len(part["y"]), 1 / (4 * len(part["y"]))) for part in parts])
    best = newton(a, 2 * signs - 1, plan.task.l2, weights)
    assert found["|x0 - x*|"] == pytest.approx(np.linalg.norm(best))
    smooth = max(smoothness(np.asarray(part["x"], float), plan.task.l2) for part in parts)
    assert found["L, the largest of a client"] == pytest.approx(smooth, rel=1e-4)
    given = {
        "distance": float(np.linalg.norm(best)),
        "variance": found["sigma^2"],
        "smoothness": smooth,
        "accuracy": 1e-2,
    }
    assert found["communications T/H"] == pytest.approx(
        local_gd.plan(**given).communications, rel=1e-3
    )
    intervals = [value for name, value in found.items() if name.startswith("best H")]
    assert len(intervals) == 5
    assert intervals == sorted(intervals)
    assert 1 <= intervals[0] < intervals[-1]


@pytest.mark.parametrize("paper", quick(sorted(PAPERS.keys() - {"local-gd"}), "feddane", "fedbc"))
def test_every_paper_says_something_finite(paper, plan):
    found = suggestions(paper, plan, accuracy=0.01)
    for row in found:
        assert isinstance(row.value, str) or (math.isfinite(row.value) and row.value >= -1), row
    if paper == "dfedavgm":
        assert values(paper, plan)["lambda"] == pytest.approx(fedax.Graph.ring(4).lam)
    if paper == "fedaware":
        steps = 2 * math.ceil(plan.task.train.largest / 50)
        rate = 1 / (math.sqrt(12) * closed_form(plan).max() * steps)
        assert values(paper, plan)["largest eta_l"] == pytest.approx(rate, rel=1e-4)


def test_dfedavgm_is_about_the_momentum_of_sgd():
    text = FILE.replace('"sgd"', '"rmsprop"\nmomentum = 0.9')
    with pytest.raises(InvalidInput, match="rmsprop; allowed: SGD"):
        values("dfedavgm", Experiment.parse(text).plan())


def test_command_line(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(FILE)
    result = succeed("theory", "fedbc", str(file))
    assert "lam_min" in result.output
    assert "1 + L_i" in result.output
