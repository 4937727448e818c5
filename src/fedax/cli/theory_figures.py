"""Pictures of `fedax theory`: what the bounds say over the numbers that one may choose."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import InvalidInput
from fedax.report.drawing.charts import Axis, Chart, Panel, Series, staggered
from fedax.report.drawing.figures import FORMATS, save_chart
from fedax.report.page import Page, Sheet, render
from fedax.theory import dfedavgm, fedbc, feddane, local_gd
from fedax.utils.files import write, writing

POINTS = 120


def save_figure(
    path: Path, title: str, panels: Sequence[Panel], rows: Sequence[Sequence[str]]
) -> None:
    """Writes panels as `.html`, with the table, or as `.svg`, `.pdf`, `.png`.

    Raises:
        InvalidInput: another ending.
        FedaxError: Matplotlib is not installed, for files that are no page.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in ("html", *FORMATS):
        raise InvalidInput.of("figure", str(path), "a file that ends in .html, .svg, .pdf or .png")
    chart = Chart(path.stem, "", panels, len(panels))
    if kind != "html":
        save_chart(chart, path)
        return
    sheet = Sheet("Numbers", ["Quantity", "Value", "Source"], rows, lead=True)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(
            path,
            render(
                Page(
                    title,
                    "Bounds are worst cases; constants are measured on the task, some of them "
                    "from below.",
                    [],
                    sheets=[sheet],
                    charts=[chart],
                )
            ),
        )


def _curves(
    title: str,
    x_label: str,
    y_label: str,
    x: np.ndarray,
    lines: dict[str, np.ndarray],
    *,
    first: int = 0,
) -> Panel:
    """Draws curves over a logarithmic axis; numbers that are not positive are left out."""
    series = []
    for index, (label, y) in enumerate(lines.items()):
        # a logarithmic axis cannot show other numbers
        is_positive = np.isfinite(y) & (y > 0)
        if is_positive.any():
            marked = staggered(int(is_positive.sum()), index, len(lines))
            series.append(
                Series(
                    label,
                    first + index,
                    x[is_positive].astype(float),
                    y[is_positive].astype(float),
                    marked=marked,
                )
            )
    return Panel(title, Axis(x_label, True), Axis(y_label, True), series)


def _evaluate(function: Callable[[float], float], x: np.ndarray) -> np.ndarray:
    """Returns the values of a bound, NaN where nothing is proved."""

    def value(point: float) -> float:
        try:
            return function(point)
        except InvalidInput:
            return math.nan

    return np.array([value(float(position)) for position in x])


def local_gd_panels(constants: dict[str, Any], rate: float, prices: Sequence[float]) -> list[Panel]:
    """Draws the cost of the accuracy over H for each price, and the bound over T for some H with
    their largest step sizes.
    """
    smooth, variance, distance = (
        constants["smoothness"],
        constants["variance"],
        constants["distance"],
    )
    # the largest H for which this step size is allowed
    largest = max(int(1 / (4 * smooth * rate) * (1 + 1e-12)), 1)
    intervals = np.unique(np.geomspace(1, largest, POINTS).round()).astype(int)
    # what the floor of the bound leaves of the accuracy; none of it above some H
    remaining = (
        constants["accuracy"] - 24 * rate**2 * variance * intervals.astype(float) ** 2 * smooth
    )
    steps = np.where(
        remaining > 0, 2 * distance**2 / (rate * np.where(remaining > 0, remaining, 1)), np.nan
    )
    costs = {f"a communication at {price:g}": steps * (1 + price / intervals) for price in prices}
    cost = _curves(
        f"Cost of an accuracy of {constants['accuracy']:g}",
        "local steps H",
        "gradients of a client",
        intervals,
        costs,
    )
    # up to four times the fewest steps that reach the accuracy, and at least a million
    times = np.geomspace(1e2, max(1e6, 4 * float(np.nanmin(steps))), POINTS).round()
    options = {"distance": distance, "variance": variance, "smoothness": smooth}
    bounds = {
        f"H = {h}": _evaluate(
            lambda t, h=h: local_gd.bound(interval=h, steps=int(t), **options), times
        )
        for h in (1, 4, 16, 64)
    }
    title = "Theorem 1, with the step size 1/(4LH)"
    return [
        cost,
        _curves(title, "steps T", "f(mean of iterates) - f*", times, bounds, first=len(prices)),
    ]


def feddane_panels(
    constants: dict[str, Any], gap: float, accuracy: float, chosen: dict[str, tuple[float, float]]
) -> list[Panel]:
    """Draws the decrease over mu for several exactnesses, and the rounds that it promises; each
    chosen mu with its decrease.
    """
    best = feddane.best_mu(**constants).mu
    mus = np.geomspace(best / 20, best * 20, POINTS)
    # with gamma of 1/scale or more nothing is promised
    scale = constants["dissimilarity"] ** 2 + 0.5
    gammas = {
        "exact solutions": 0.0,
        f"gamma = {0.1 / scale:.2g}": 0.1 / scale,
        f"gamma = {0.5 / scale:.2g}": 0.5 / scale,
    }
    rhos = {
        label: _evaluate(
            lambda mu, gamma=gamma: feddane.decrease(mu=mu, inexactness=gamma, **constants), mus
        )
        for label, gamma in gammas.items()
    }
    rounds = {
        label: np.where(rho > 0, gap / (np.where(rho > 0, rho, 1) * accuracy), np.nan)
        for label, rho in rhos.items()
    }
    panels = [
        _curves("Decrease that is promised", "mu", "rho", mus, rhos),
        _curves(f"Rounds to a squared gradient of {accuracy:g}", "mu", "rounds", mus, rounds),
    ]
    if chosen:
        x, y = (np.array(values, float) for values in zip(*chosen.values(), strict=True))
        panels[0] = replace(
            panels[0], series=[*panels[0].series, Series("of the file", 0, x, y, kind="runs")]
        )
    return panels


def dfedavgm_panels(
    setting: dfedavgm.Setting, gap: float, rounds: int, rounding: dfedavgm.Rounding | None = None
) -> list[Panel]:
    """Draws the parts of Theorem 1's bound and the consensus bounds over eta, and the bound over
    the rounds with the best eta.
    """
    largest = dfedavgm.largest_step_size(
        smoothness=setting.smoothness, local_steps=setting.local_steps, momentum=setting.momentum
    )
    # rounding down allows half of the step size, see `best_step_size`
    largest *= 0.5 if rounding is not None and rounding.kind == "down" else 1.0
    # just below the largest step size, where gamma is 0 and the bound infinite
    rates = np.geomspace(largest * 1e-4, largest * 0.999, POINTS)
    constants = [dfedavgm.constants(replace(setting, rate=float(eta)), rounding) for eta in rates]
    parts = {
        "progress, 2 (f - min f)/(gamma T)": np.array(
            [2 * gap / (constant.gamma * rounds) for constant in constants]
        ),
        "local training, alpha": np.array([constant.alpha for constant in constants]),
        "missing consensus, beta": np.array([constant.beta for constant in constants]),
    }
    lines = {"bound": np.sum(list(parts.values()), axis=0)} | parts
    consensus = {
        "corrected": _evaluate(
            lambda eta: dfedavgm.consensus_bound(replace(setting, rate=eta), rounding), rates
        ),
        "as printed": _evaluate(
            lambda eta: dfedavgm.consensus_bound(
                replace(setting, rate=eta), rounding, as_printed=True
            ),
            rates,
        ),
    }
    times = np.geomspace(1e2, 1e10, 40).round()

    def best_bound(t: float) -> float:
        eta = dfedavgm.best_step_size(setting, rounding, gap=gap, rounds=int(t))
        return dfedavgm.stationarity_bound(
            replace(setting, rate=eta), rounding, gap=gap, rounds=int(t)
        )

    return [
        _curves(f"Squared gradient after {rounds:,} rounds", "eta", "", rates, lines),
        _curves(
            f"Consensus, Lemma {5 if rounding else 4}",
            "eta",
            "mean square distance",
            rates,
            consensus,
            first=4,
        ),
        _curves(
            "Squared gradient with the best eta",
            "rounds",
            "",
            times,
            {"best eta": _evaluate(best_bound, times)},
            first=6,
        ),
    ]


def fedaware_panels(
    weights: np.ndarray, shortest: np.ndarray, steps: np.ndarray, zeta: np.ndarray
) -> list[Panel]:
    """Draws the clients' weights and those of the shortest combination, and each client's work
    against its dissimilarity.
    """
    # from the client with the most examples
    order = np.argsort(-weights, kind="stable")
    rank = np.arange(1, len(order) + 1)
    lines = {"share of the examples": weights[order], "shortest combination": shortest[order]}
    weights_panel = _curves("Weights", "client, from the largest", "weight", rank, lines)
    points = Series("a client", 2, steps.astype(float), zeta, kind="runs")
    dissimilarity_panel = Panel(
        "Work and dissimilarity", Axis("local steps K_i", True), Axis("zeta_i", True), [points]
    )
    return [replace(weights_panel, x=Axis("client, from the largest")), dissimilarity_panel]


def fedbc_panels(smoothness: np.ndarray, delta: float, accuracy: float) -> list[Panel]:
    """Returns the interval of each client's multiplier, and the bound on consensus over a
    multiplier of all.
    """
    # from the smoothest client
    order = np.argsort(smoothness)
    bounds, rank = fedbc.multiplier_bounds(smoothness[order]), np.arange(1, len(order) + 1)
    lines = {"lowest, 1 + L_i": bounds.low, "highest, (1 + L_i)²/L_i": bounds.high}
    interval = _curves(
        "Interval of the multipliers", "client, from the smoothest", "multiplier", rank, lines
    )
    smooth = float(smoothness.max())
    # Lemma B.2 needs more than L/2
    multipliers = np.geomspace(smooth / 2 * 1.01, smooth * 100, POINTS)

    def spread(multiplier: float, error: float) -> float:
        # delta grows with the multipliers, which are all alike here
        heterogeneity = delta * multiplier / (1 + smooth)
        return fedbc.consensus_bound(
            smoothness=smooth, multiplier=multiplier, error=error, heterogeneity=heterogeneity
        )

    labels = {"solved exactly": 0.0, f"epsilon = {accuracy:g}": accuracy}
    distances = {
        label: _evaluate(lambda lam, error=error: spread(lam, error), multipliers)
        for label, error in labels.items()
    }
    consensus = _curves(
        "Consensus, Lemma B.2",
        "multiplier of all clients",
        "squared distance",
        multipliers,
        distances,
        first=2,
    )
    return [replace(interval, x=Axis("client, from the smoothest")), consensus]
