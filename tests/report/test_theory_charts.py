"""Runs held to theorems, as charts: rows of marks and curves from recorded series, against the
formulas by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.observe import Curvature, LocalSpread, Optimum
from fedax.report import Page, Record, render
from fedax.report.theorems.marks import theory_charts
from fedax.theory import dfedavgm, feddane, local_gd
from problems import quadratic, random_quadratic
from samples import record

SCHEDULE = {
    "cohort": None,
    "sampling": "uniform",
    "weights": "equal",
    "batch_size": "full",
    "steps": 2,
    "stragglers": 0.0,
}


def current_configuration(algorithm, solver="Exact", **options):
    """Settings as a run keeps them, by which premises are checked."""
    known = {
        "algorithm": {"type": algorithm} | options,
        "solver": {"type": solver},
        "schedule": SCHEDULE,
    }
    return known | {"channel": None, "on_bad_client": "stop"}


def run_of(rounds, settings=None, **metrics):
    count = len(rounds)
    found = {
        name: np.broadcast_to(np.asarray(values, float), (count, *np.shape(values)[1:]))
        for name, values in metrics.items()
    }
    books = {"rounds": np.asarray(rounds), "seconds": np.zeros(count), "bits": np.zeros(count, int)}
    return Record(
        task="T",
        label="A",
        seed=0,
        draw=0,
        metrics=found,
        outcome=fedax.core.Outcome(),
        settings=settings,
        **books,
    )


def marks(chart):
    """By statement, the rounds in which it held and those in which it did not."""
    strip = chart.panels[0]
    rows = dict(strip.y.ticks)
    found = {name: ([], []) for name in rows.values()}
    for column, series in enumerate(strip.series):
        for x, y in zip(series.x, series.y, strict=True):
            found[rows[float(y)]][column].append(int(x))
    return found


def curves(chart):
    return {series.label: series.y for panel in chart.panels[1:] for series in panel.series}


FEDDANE = {
    "objective": [3.0, 2.9, 2.95, 1.0],
    "gradient_norm": [1.0, 1.0, 1.0, 1.0],
    "dissimilarity": [1.0, 1.0, 1.0, 50.0],
    "smoothness_largest": [0.5, 1.0, 0.5, 0.5],
    "eigenvalue_lowest": [0.0, 0.0, -5.0, 0.0],
    "proximal": [5.0],
    "inexactness_largest": [0.0, 0.0, 0.0, 1.5],
    "inexactness_mean": [0.0, 0.0, 0.0, 0.5],
}


def test_feddane_round_by_round():
    """rho is 0.1 with mu = 5 and L = 1: promised and kept, promised and not kept, mu not above the
    concavity, nothing left."""
    (chart,) = theory_charts([run_of([0, 1, 2, 3], current_configuration("FedDANE"), **FEDDANE)])
    assert marks(chart) == {
        "mu > -lambda_min": ([0, 1, 3], [2]),
        "gamma < 1": ([0, 1, 2], [3]),
        "rho > 0: a decrease is promised": ([0, 1], [2, 3]),
        "f fell by rho |∇f|²": ([0], [1]),
        "f fell": ([0, 2], [1]),
    }
    shown = curves(chart)
    np.testing.assert_allclose(shown["promised, rho |∇f|²"], [0.1, 0.1, np.nan, np.nan])
    np.testing.assert_allclose(shown["it fell by"], [0.1, np.nan, 1.95, np.nan])
    best = feddane.best_mu(smoothness=1.0, dissimilarity=1.0)
    assert shown["best mu of the theory, exact solutions"][0] == pytest.approx(best.mu)
    assert {series.style for panel in chart.panels[1:] for series in panel.series} == set(
        range(len(shown))
    )


def test_a_promise_is_about_one_round():
    (chart,) = theory_charts([run_of([0, 2, 3, 4], current_configuration("FedDANE"), **FEDDANE)])
    assert marks(chart)["f fell by rho |∇f|²"] == ([], [2])


def test_local_gradient_descent_on_quadratics():
    """All lemmas hold on what a run of the library records, until the step size is too large for
    the theorem."""
    a, b = random_quadratic(clients=4, dim=3, high=3.0)
    task, best = quadratic(a, b), np.linalg.solve(a.mean(0), np.einsum("kij,kj->i", a, b) / 4)
    least = float(np.mean(np.einsum("ki,kij,kj->k", best - b, a, best - b)) / 2)
    smooth = float(np.linalg.eigvalsh(a).max())
    for rate, small in (
        (local_gd.step_size(smooth, 4) * 0.99, True),
        (local_gd.step_size(smooth, 4) * 1.01, False),
    ):
        schedule = fedax.Schedule(steps=4, batch_size="full", weights="equal")
        observers = [Curvature(), LocalSpread(least), Optimum(jnp.asarray(best))]
        method = fedax.LocalGD(returned="mean")
        history = fedax.run(
            method, task, solver=fedax.SGD(rate), schedule=schedule, rounds=3, observe=observers
        )
        (chart,) = theory_charts([Record.of(history, task="T", label="A", seed=0)])
        rounds, found = [0, 1, 2, 3], marks(chart)
        assert found["step size at most 1/(4LH)"] == ((rounds, []) if small else ([], rounds))
        assert found["Lemma 3 at every step"] == (rounds, [])
        assert found["Lemma 2 in every round"] == ((rounds, []) if small else ([], []))
        assert found["Lemma 2, second inequality"] == ((rounds, []) if small else ([], []))
        assert found["Theorem 1"] == ((rounds[1:], []) if small else ([], []))
        if small:
            given = {"smoothness": smooth, "interval": 4, "rate": rate, "steps": 12}
            variance = local_gd.variance(np.einsum("kij,kj->ki", a, best - b))
            bound = local_gd.bound(distance=float(np.linalg.norm(best)), variance=variance, **given)
            assert curves(chart)["Theorem 1"][-1] == pytest.approx(bound, rel=1e-6)


GOSSIP = {
    "consensus_square": [0.0, 1.0, 400.0],
    "smoothness_largest": [1.0],
    "local_steps": [2.0],
    "local_rate": [1 / 16],
    "local_momentum": [0.0],
    "mixing": [0.9],
    "gradient_largest": [1.0],
    "batch_variance": [0.0],
    "gradient_variance": [0.0],
    "rounding_square": [0.0],
    "rounding_down": [0.0],
    "graph_period": [1.0],
}
PLAIN, REPLICA = (
    current_configuration("DFedAvgM", "SGD"),
    current_configuration("QuantizedDFedAvgM", "SGD", mode="replica", rounding="floor"),
)


def test_consensus_against_lemmas_4_and_5():
    """C_2 = 128, so that the printed bound is 5 and the corrected one 40.5; with rounding down both
    are larger."""
    (chart,) = theory_charts([run_of([0, 1, 2], PLAIN, **GOSSIP)])
    setting = dfedavgm.Setting(1.0, 0.0, 0.0, 1.0, 2, 1 / 16, 0.0, 0.9)
    assert curves(chart)["Lemma 4, as printed"][0] == pytest.approx(5.0)
    assert (
        curves(chart)["Lemma 4, corrected"][0]
        == pytest.approx(dfedavgm.consensus_bound(setting))
        == pytest.approx(40.5)
    )
    assert marks(chart)["consensus below Lemma 4, corrected"] == ([1], [2])
    (chart,) = theory_charts(
        [run_of([0, 1, 2], REPLICA, **GOSSIP | {"rounding_square": [0.5], "rounding_down": [1.0]})]
    )
    rounding = dfedavgm.Rounding(2, 0.5, "down")
    assert curves(chart)["Lemma 5, corrected"][0] == pytest.approx(
        dfedavgm.consensus_bound(setting, rounding)
    )
    (chart,) = theory_charts([run_of([0, 1, 2], PLAIN, **GOSSIP | {"local_rate": [0.07]})])
    assert marks(chart)["eta at most 1/(8LK)"] == ([], [0, 1, 2])
    assert marks(chart)["consensus below Lemma 4, corrected"] == ([], [])


def test_surrogates_and_constraints():
    surrogate = {
        "diversity": [1.0, 2.0],
        "surrogate_diversity": [3.0, np.inf],
        "surrogate_distance": [0.1, 4.0],
        "surrogate_gap": [1e-9, 1e-9],
    }
    (chart,) = theory_charts([run_of([0, 1], current_configuration("FedAWARE"), **surrogate)])
    assert marks(chart)["surrogate diversity finite"] == ([0], [1])
    assert marks(chart)["Theorem 4.1's rho may be positive"] == ([0], [1])
    constraints = {
        "violation_largest": [0.0, 0.5],
        "violated": [0.0, 0.5],
        "multiplier": [[2.0, 2.0], [2.0, 1.0]],
        "lagrangian": [1.0, 1.0],
        "smoothness": [[1.0, 1.0], [1.0, 1.0]],
    }
    (chart,) = theory_charts([run_of([0, 1], current_configuration("FedBC"), **constraints)])
    assert marks(chart) == {
        "all constraints hold": ([0], [1]),
        "multipliers ≥ 1 + L_i": ([0], [1]),
        "multipliers < (1 + L_i)²/L_i": ([0, 1], []),
    }


def test_local_models_of_fedbc_against_lemma_b_2():
    """With lambda = L = 1, epsilon = 1 and delta = 0 the bound is 4; with lambda = 1/2 nothing is
    said."""
    solves = {
        "violation_largest": [0.0],
        "violated": [0.0],
        "multiplier": [[1.0, 2.0], [1.0, 2.0], [0.5, 2.0]],
        "lagrangian": [1.0],
        "smoothness_largest": [1.0, 0.5, 1.0],
        "solve_error_largest": [1.0],
        "solve_apart": [3.9, 4.1, 0.1],
        "solve_heterogeneity_largest": [0.0],
        "solve_smoothness": [0.5],
    }
    (chart,) = theory_charts([run_of([0, 1, 2], current_configuration("FedBC"), **solves)])
    assert marks(chart)["smallest multiplier > L/2"] == ([0, 1], [2])
    assert marks(chart)["local models as near as Lemma B.2 says"] == ([0], [1])
    np.testing.assert_allclose(curves(chart)["Lemma B.2"], [4.0, 4.0, np.nan])


@pytest.mark.slow
def test_lemma_b_2_along_a_run():
    """Quadratics of equal curvature, whose delta is the same everywhere: it holds, and is not
    far."""
    a, b = np.stack([np.diag([1.0, 2.0])] * 4), np.random.default_rng(0).normal(size=(4, 2))
    lam = 3.0
    method = fedax.FedBC(dual_lr=0.0, lam=lam, gamma=0.1, learn_gamma=False)
    observe = [Curvature(), fedax.observe.Constraints(), fedax.observe.SolveErrors()]
    schedule = fedax.Schedule(steps=3, batch_size="full")
    run = fedax.run(
        method,
        quadratic(a, b),
        rounds=6,
        solver=fedax.SGD(0.05),
        schedule=schedule,
        observe=observe,
    )
    (chart,) = theory_charts([Record.of(run, task="T", label="A", seed=0)])
    assert marks(chart)["local models as near as Lemma B.2 says"] == (list(range(7)), [])


def test_runs_without_such_observers_have_no_charts():
    assert theory_charts([record("A")]) == []
    assert '"theory":[]' in render(Page("T", "", [record("A")]))
    assert "Theory of FedDANE: A, T" in render(Page("T", "", [run_of([0, 1, 2, 3], **FEDDANE)]))
