"""Statements of the five papers about runs: each function returns those about an algorithm's runs
with different seeds.

They are None where the runs' observers did not watch what the paper speaks of.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax.core import InvalidInput
from fedax.report.drawing.charts import Mark, Panel
from fedax.report.record import Record
from fedax.report.theorems import premises
from fedax.report.theorems.statements import (
    ONE_SEED,
    Check,
    Held,
    Interval,
    decide_sign,
    flags,
    mean_over_seeds,
    panel,
    series_of,
)
from fedax.theory import dfedavgm, fedbc, feddane, local_gd

SURROGATE = 0.382
"""Of Theorem 4.1 of FedAWARE as printed: from this distance of the surrogate weights on its rho is
below 0."""


class _Descent(NamedTuple):
    """FedDANE's series of one run; `excess` is by how much f fell more than is promised, with a rho
    below 0 too.
    """

    rho: np.ndarray
    fell: np.ndarray
    promised: np.ndarray
    excess: np.ndarray
    best: np.ndarray
    told: np.ndarray


def feddane_of(runs: Sequence[Record]) -> Held | None:
    """Checks Theorems 3 and 5: the decrease of f in a round, in expectation over its devices."""
    names = (
        "objective",
        "gradient_norm",
        "dissimilarity",
        "smoothness_largest",
        "eigenvalue_lowest",
        "proximal",
    )
    run, runs = runs[0], [each for each in runs if series_of(each, *names) is not None]
    series = series_of(run, *names)
    if series is None:
        return None
    # each of shape (observations,)
    _, _, b, _, lowest, mu = series
    # the panels show the first run; the others only count in the means
    gamma, descents = _gamma(run), [_compute_descent(each, names) for each in runs]
    fell, promised, clients = descents[0].fell, descents[0].promised, _count_clients(run)
    reason = premises.feddane(run.settings, clients)
    all_clients = run.settings is not None and premises.everyone_works(run.settings, clients)
    excess = mean_over_seeds([each.excess for each in descents])
    # with all devices a round has no randomness left, else the promise is one for the mean over
    # cohorts
    if all_clients:
        decrease_holds, seed_reason = flags(fell >= promised, descents[0].told), None
    else:
        decrease_holds, seed_reason = (
            np.where(descents[0].told, decide_sign(excess)[: len(fell)], np.nan),
            ONE_SEED if len(runs) < 2 else None,
        )
    checks = [
        Check("mu > -lambda_min", flags(mu > -lowest)),
        Check("gamma < 1", flags(gamma < 1), reason),
        Check("rho > 0: a decrease is promised", flags(descents[0].rho > 0), reason),
        Check("f fell by rho |∇f|²", decrease_holds, reason or seed_reason),
        Check("f fell", flags(fell > 0, np.isfinite(fell))),
    ]
    promise = {} if reason else {"promised, rho |∇f|²": promised}
    panels = [
        panel(
            "Change of f in a round",
            run.rounds,
            {"it fell by": fell, "it rose by": -fell} | promise,
        ),
        panel(
            "mu against what the theory asks for",
            run.rounds,
            {
                "mu": mu,
                "best mu of the theory, exact solutions": descents[0].best,
                "-lambda_min": np.maximum(-lowest, 0),
            },
        ),
        panel(
            "Inexactness of the local solutions",
            run.rounds,
            _inexactness_curves(run),
            marks=[Mark("theorems end", 1.0)],
        ),
        panel("Dissimilarity B", run.rounds, {"B": b}),
    ]
    if not (all_clients or reason) and len(runs) > 1:
        title = f"Fall of f less what is promised, mean of {len(runs)} seeds"
        panels.insert(1, _interval_panel(title, run.rounds, "with its 95 % interval", excess))
    return Held("FedDANE", checks, panels)


def _compute_descent(run: Record, names: Sequence[str]) -> _Descent:
    series = series_of(run, *names)
    assert series is not None, "a run that was not watched"
    f, gradient, b, smooth, lowest, mu = series
    # all of shape (observations,); B is at least 1, below that it is rounding
    b, concavity, gamma = np.maximum(b, 1), np.maximum(-lowest, 0), _gamma(run)
    rho, best = np.full(len(f), -np.inf), np.full(len(f), np.nan)
    for t in np.flatnonzero(np.isfinite(b)):
        constants = {
            "smoothness": float(np.nanmax(smooth)),
            "dissimilarity": float(b[t]),
            "concavity": float(concavity[t]),
        }
        best[t] = feddane.best_mu(**constants).mu
        if mu[t] > concavity[t] and gamma[t] < 1:
            # rho stays -infinity where the theorem does not apply
            rho[t] = feddane.decrease(mu=float(mu[t]), inexactness=float(gamma[t]), **constants)
    # a fall of f belongs to a round only where the next observation is one round later
    follows = np.append(np.diff(run.rounds) == 1, False)
    fell = np.append(f[:-1] - f[1:], np.nan)
    promised = np.where(rho > 0, rho * gradient**2, np.nan)
    # below some roundings of f a promised fall cannot be seen
    rounding = 8 * np.finfo(np.asarray(run.metrics["objective"]).dtype).eps * np.abs(f)
    # with a negative rho too: a mean over seeds must not leave these rounds out
    excess = np.where(
        follows & np.isfinite(rho), fell - np.where(np.isfinite(rho), rho, 0) * gradient**2, np.nan
    )
    return _Descent(rho, fell, promised, excess, best, follows & (rho > 0) & (promised > rounding))


def _gamma(run: Record) -> np.ndarray:
    """Returns the inexactness of the local solutions, with an inexact solver at least what it
    grants.
    """
    measured = np.asarray(run.metrics.get("inexactness_largest", np.zeros(len(run.rounds))), float)
    solver = {} if run.settings is None else run.settings["solver"]
    return (
        np.maximum(measured, solver.get("gamma", 0.0))
        if solver.get("type") == "Inexact"
        else measured
    )


def _inexactness_curves(run: Record) -> dict[str, np.ndarray]:
    names = {
        "gamma, largest of a client": "inexactness_largest",
        "gamma, mean of the clients": "inexactness_mean",
    }
    return {label: run.metrics[name] for label, name in names.items() if name in run.metrics}


def _count_clients(run: Record) -> int:
    """Returns the number of clients, -1 if no metric tells."""
    each = (run.metrics.get(name) for name in ("smoothness", "inexactness", "multiplier"))
    return next((values.shape[1] for values in each if values is not None and values.ndim == 2), -1)


def _interval_panel(title: str, rounds: np.ndarray, label: str, interval: Interval) -> Panel:
    """Returns a panel with a mean over seeds and its interval."""
    base = panel(title, rounds, {label: interval.mean[: len(rounds)]}, log=False)
    low, high = interval.low[: len(rounds)], interval.high[: len(rounds)]
    series = [dataclasses.replace(each, low=low, high=high) for each in base.series]
    return Panel(title, base.x, base.y, series, [Mark("", 0.0)])


def local_gd_of(runs: Sequence[Record]) -> Held | None:
    """Checks Lemmas 2 and 3 in every round, and Theorem 1. Nothing is drawn at random."""
    run = runs[0]
    series = series_of(run, "spread", "spread_gradient", "spread_rate", "smoothness_largest")
    if series is None or series[0].ndim != 2:
        return None
    # V_t and |g_t|² at every step of the last round, shape (observations, steps); L is the largest
    # one seen
    spread, square, rates, smooth = series
    constant, rate, interval = float(np.nanmax(smooth)), float(rates[0]), spread.shape[1]
    # the recorded rate has been through float32
    small_step = rate <= local_gd.step_size(constant, interval) * (1 + 1e-9)
    lowest = np.asarray(run.metrics.get("eigenvalue_lowest", np.zeros(1)), float)
    nonconvex = (
        "is about convex losses, and a client's has negative curvature"
        if np.nanmin(lowest) < -1e-3 * constant
        else None
    )
    reason = premises.local_gd(run.settings) or nonconvex
    checks = [Check("step size at most 1/(4LH)", np.full(len(spread), float(small_step)), reason)]
    panels = [
        panel("Spread V_t of the workers, largest of a round", run.rounds, {"V_t": spread.max(1)})
    ]

    # Lemmas 2 and 3 need f(x_t) - f* at every step
    if "spread_gap" in run.metrics:
        gaps = np.maximum(np.asarray(run.metrics["spread_gap"], float), 0)
        bound = 2 * constant**2 * spread + 4 * constant * gaps
        checks.append(
            Check("Lemma 3 at every step", flags((square <= bound * (1 + 1e-6)).all(1)), reason)
        )
        if reason is None:
            worst = np.argmax(square / np.where(bound > 0, bound, np.inf), axis=1)
            nearest = np.arange(len(spread)), worst
            # of each round, the step at which the bound is nearest to what was measured
            lines = {
                "|g_t|², where it is nearest": square[nearest],
                "2 L² V_t + 4 L D_f": bound[nearest],
            }
            panels.append(panel("Mean gradient against Lemma 3", run.rounds, lines))
        if "optimum_variance" in run.metrics:
            lemma_options = {"smoothness": constant, "interval": interval, "rate": rate}
            _check_lemma_2(run, spread, gaps, checks, panels, lemma_options, reason, small_step)

    # Theorem 1 is about the mean of the iterates, so its premises are others
    series = series_of(run, "distance", "optimum_gap", "optimum_variance")
    if series is not None:
        distance, gap, variance = series
        mean_reason, steps = (
            premises.local_gd_mean(run.settings) or nonconvex,
            run.rounds * interval,
        )
        bound = np.full(len(gap), np.nan)
        options = {
            "variance": float(variance[0]),
            "smoothness": constant,
            "interval": interval,
            "rate": rate,
        }
        # after 0 steps there is no mean of iterates
        for t in np.flatnonzero((steps > 0) & (small_step and mean_reason is None)):
            bound[t] = local_gd.bound(distance=float(distance[0]), steps=int(steps[t]), **options)
        checks.append(Check("Theorem 1", flags(gap <= bound, np.isfinite(bound)), mean_reason))
        panels.append(
            panel(
                "f above its minimum, against Theorem 1",
                run.rounds,
                {"f - f*": gap, "Theorem 1": bound},
            )
        )
        panels.append(panel("Distance to the optimum", run.rounds, {"|x - x*|": distance}))
    return Held("Local GD", checks, panels)


def _check_lemma_2(
    run: Record,
    spread: np.ndarray,
    gaps: np.ndarray,
    checks: list[Check],
    panels: list[Panel],
    lemma_options: Mapping[str, Any],
    reason: str | None,
    small_step: bool,
) -> None:
    """Checks both inequalities of Lemma 2 in each observed round, if the step size is one that they
    cover.
    """
    options = {"variance": float(run.metrics["optimum_variance"][0]), **lemma_options}
    bound, second = (np.full(len(spread), np.nan) for _ in range(2))
    if small_step and reason is None:
        bound = np.array([local_gd.spread_bound(gaps=row, **options) for row in gaps])
        second = np.array([local_gd.spread_excess_bound(gaps=row, **options) for row in gaps])
    # Lemma 2 bounds sums over the steps of a round; shapes (observations, steps) become
    # (observations,)
    excess = (1.5 * lemma_options["smoothness"] * spread - gaps).sum(1)
    # rounds without a bound get no mark
    has_bound = np.isfinite(bound)
    # both sides are sums with rounding errors in proportion to their terms
    tolerance = 1e-6 * (1.5 * lemma_options["smoothness"] * spread + gaps).sum(1)
    checks.append(
        Check(
            "Lemma 2 in every round", flags(spread.sum(1) <= bound * (1 + 1e-6), has_bound), reason
        )
    )
    checks.append(
        Check("Lemma 2, second inequality", flags(excess <= second + tolerance, has_bound), reason)
    )
    lines = {"sum of V_t": spread.sum(1), "Lemma 2": bound}
    panels.append(panel("Spread of the workers over a round, against Lemma 2", run.rounds, lines))


def dfedavgm_of(runs: Sequence[Record]) -> Held | None:
    """Checks Lemmas 4 and 5: the distance of the models to their mean, in expectation over
    minibatches and rounding.
    """
    constants = ("smoothness_largest", "gradient_largest", "batch_variance", "gradient_variance")
    names = (
        "consensus_square",
        "local_steps",
        "local_rate",
        "local_momentum",
        "mixing",
        *constants,
    )
    run, runs = runs[0], [each for each in runs if series_of(each, *names) is not None]
    series = series_of(run, *names)
    if series is None or not series[0].any():
        return None
    consensus, rounding = series[0], _rounding(run)
    period = float(run.metrics["graph_period"][0]) if "graph_period" in run.metrics else None
    reason = premises.dfedavgm(run.settings, period) or _grid_reason(run)
    setting = _setting(runs, series, constants) if reason is None else None
    if reason is None and setting is None:
        reason = "needs a connected graph and losses with curvature"
    # the lemmas' step size, with room for a rate that has been through float32
    small_step = setting is not None and setting.rate <= 1 / (
        8 * setting.smoothness * setting.local_steps
    ) * (1 + 1e-9)
    # the lemma in the form that holds, and as the paper prints it
    bounds = dict.fromkeys(("corrected", "as printed"), math.nan)
    if setting is not None and small_step:
        bounds = {
            name: dfedavgm.consensus_bound(setting, rounding, as_printed=name == "as printed")
            for name in bounds
        }
    # the lemmas are about expectations: one run decides them only if nothing is drawn at random
    deterministic = premises.is_deterministic(run.settings)
    seed_reason = None if deterministic or len(runs) > 1 else ONE_SEED
    interval = mean_over_seeds(
        [np.asarray(each.metrics["consensus_square"], float) for each in runs]
    )
    lemma, past_start = "Lemma 5" if rounding else "Lemma 4", run.rounds > 0
    checks = [Check("eta at most 1/(8LK)", np.full(len(consensus), float(small_step)), reason)]
    for name, bound in bounds.items():
        # the interval of bound minus mean; its ends change places
        certain = decide_sign(
            Interval(bound - interval.mean, bound - interval.high, bound - interval.low)
        )[: len(consensus)]
        holds = (
            flags(consensus <= bound, past_start & math.isfinite(bound))
            if deterministic
            else np.where(past_start, certain, np.nan)
        )
        checks.append(Check(f"consensus below {lemma}, {name}", holds, reason or seed_reason))
    lines = {"mean square": consensus} | {
        f"{lemma}, {name}": np.full(len(consensus), v) for name, v in bounds.items()
    }
    panels = [
        panel("Distance of the models to their mean", run.rounds, lines),
        panel(
            "Largest gradient of a client",
            run.rounds,
            {"|∇f_i|": np.asarray(run.metrics["gradient_largest"], float)},
        ),
    ]
    if not (deterministic or reason) and len(runs) > 1:
        panels.insert(
            1,
            _interval_panel(
                f"Distance to the mean model, mean of {len(runs)} seeds",
                run.rounds,
                "with its 95 % interval",
                interval,
            ),
        )
    if (norm := series_of(run, "gradient_norm")) is not None:
        panels.append(
            panel("Gradient at the mean model, squared", run.rounds, {"|∇f|²": norm[0] ** 2})
        )
    return Held("DFedAvgM", checks, panels)


def _rounding(run: Record) -> dfedavgm.Rounding | None:
    square = float(run.metrics.get("rounding_square", np.zeros(1))[0])
    kind = "down" if run.metrics.get("rounding_down", np.zeros(1))[0] else "stochastic"
    return (
        dfedavgm.Rounding(1, math.sqrt(square), kind)
        if math.isfinite(square) and square > 0
        else None
    )


def _grid_reason(run: Record) -> str | None:
    """Returns the premises of Lemma 5 on the grid that messages are rounded to."""
    if not math.isfinite(float(run.metrics.get("rounding_square", np.zeros(1))[0])):
        return "is about messages that are rounded to one grid, and each has one of its own"
    clipped = np.asarray(run.metrics.get("overflow", np.zeros(1)), float)
    return "is about entries within the grid, and some were clipped" if clipped.any() else None


def _setting(
    runs: Sequence[Record], series: Sequence[np.ndarray], constants: Sequence[str]
) -> dfedavgm.Setting | None:
    """Returns the constants of the lemmas, the largest of all runs; None where there are none."""
    # settings do not change during a run: the first observation has them
    _, steps, rate, momentum, mixing = (values[0] for values in series[:5])
    smooth, steepest, noise, between = (
        max(float(np.nanmax(each.metrics[name])) for each in runs) for name in constants
    )
    options = {"rate": float(rate), "momentum": float(momentum), "mixing": float(mixing)}
    try:
        return dfedavgm.Setting(smooth, noise, between, steepest, int(steps), **options)
    except InvalidInput:
        # a disconnected graph, or a model without curvature
        return None


def fedaware_of(runs: Sequence[Record]) -> Held | None:
    """Computes Definitions 3.1 and 3.2 at the gradients, and where Theorem 4.1 ends."""
    run = runs[0]
    series = series_of(run, "diversity", "surrogate_diversity", "surrogate_distance")
    if series is None:
        return None
    diversity, surrogate, distance = series
    checks = [
        Check("surrogate diversity ≥ diversity", flags(surrogate >= diversity * (1 - 1e-6))),
        Check("surrogate diversity finite", flags(np.isfinite(surrogate))),
        Check(
            "Theorem 4.1's rho may be positive",
            flags(distance < SURROGATE),
            premises.fedaware(run.settings),
        ),
    ]
    gaps = {"of the clients' gradients": run.metrics["surrogate_gap"]}
    gaps |= (
        {"of the momenta, in the method": run.metrics["frank_wolfe_gap"]}
        if "frank_wolfe_gap" in run.metrics
        else {}
    )
    limit = [Mark("Theorem 4.1 ends", SURROGATE)]
    panels = [
        panel("Diversity", run.rounds, {"gradients, D": diversity, "largest surrogate": surrogate}),
        panel(
            "N + χ² - 2χ of the surrogate weights", run.rounds, {"distance": distance}, marks=limit
        ),
        panel("Frank-Wolfe gap", run.rounds, gaps),
    ]
    return Held("FedAWARE", checks, panels)


def fedbc_of(runs: Sequence[Record]) -> Held | None:
    """Checks the multipliers' interval, and Lemma B.2 for the local models of the next round."""
    run = runs[0]
    series = series_of(run, "violation_largest", "violated", "multiplier", "lagrangian")
    # multipliers are 0 for methods without constraints
    if series is None or not series[2].any():
        return None
    largest, violated, multiplier, lagrangian = series
    checks, reason = (
        [Check("all constraints hold", flags(largest <= 0))],
        premises.fedbc(run.settings),
    )
    lines = {"smallest": multiplier.min(1), "largest": multiplier.max(1)}
    if (smooth := series_of(run, "smoothness")) is not None and (smooth[0] > 0).all():
        # one interval for each client, from its own L_i
        intervals = [fedbc.multiplier_bounds(each) for each in smooth[0]]
        low, high = (
            np.array([getattr(each, name) for each in intervals]) for name in ("low", "high")
        )
        checks.append(
            Check("multipliers ≥ 1 + L_i", flags((multiplier >= low * (1 - 1e-3)).all(1)), reason)
        )
        checks.append(
            Check(
                "multipliers < (1 + L_i)²/L_i",
                flags((multiplier < high * (1 + 1e-3)).all(1)),
                reason,
            )
        )
        lines |= {"largest 1 + L_i": low.max(1), "smallest (1 + L_i)²/L_i": high.min(1)}
    panels = [
        panel(
            "Largest violation",
            run.rounds,
            {"|x_i - z|² - gamma_i": largest},
            log=False,
            marks=[Mark("", 0.0)],
        ),
        panel("Clients whose constraint is violated", run.rounds, {"part": violated}, log=False),
        panel("Multipliers", run.rounds, lines),
        panel("Lagrangian", run.rounds, {"Lagrangian": lagrangian}, log=False),
    ]
    _check_fedbc_consensus(run, multiplier, checks, panels)
    return Held("FedBC", checks, panels)


def _check_fedbc_consensus(
    run: Record, multiplier: np.ndarray, checks: list[Check], panels: list[Panel]
) -> None:
    """Checks Lemma B.2 in the rounds whose multipliers it covers, with delta and L at the local
    models.
    """
    names = ("solve_error_largest", "solve_apart", "smoothness_largest")
    if (series := series_of(run, *names)) is None:
        return
    error, distance, smooth = series
    local = series_of(run, "solve_heterogeneity_largest", "solve_smoothness")
    delta, local_smooth = local or (np.full(len(distance), np.nan),) * 2
    missing = None if local else "needs delta at the local models, which the run did not record"
    reason = premises.fedbc_consensus(run.settings, _count_clients(run)) or missing
    # the local models leave the paths along which L was measured, so both places count
    constant, lam = float(np.nanmax([*smooth, *local_smooth])), multiplier.min(1)
    bound = np.full(len(distance), np.nan)
    # only rounds that the lemma covers have a bound
    for t in np.flatnonzero(
        (lam > constant / 2) & np.isfinite(error) & np.isfinite(delta) & (reason is None)
    ):
        options = {
            "error": float(error[t]),
            "heterogeneity": float(delta[t]),
            "multiplier": float(lam[t]),
        }
        bound[t] = fedbc.consensus_bound(smoothness=constant, **options)
    checks.append(Check("smallest multiplier > L/2", flags(lam > constant / 2), reason))
    holds = flags(distance <= bound * (1 + 1e-6), np.isfinite(bound))
    checks.append(Check("local models as near as Lemma B.2 says", holds, reason))
    lines = {"largest |x_i - x_j|²": distance, "Lemma B.2": bound}
    panels.append(panel("Distance of the local models, against Lemma B.2", run.rounds, lines))
    panels.append(
        panel("Inexactness of the local solutions", run.rounds, {"largest epsilon_i": error})
    )
