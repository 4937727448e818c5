"""Measures of the benchmark: what a run costs until the target, and how good it is at its end."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedax.observe.modes import is_higher_better
from fedax.results import Record
from fedax.results.tables.reductions import read_curve


class Cost(NamedTuple):
    """A cost: its title, its unit, and what a run has spent at each observation."""

    title: str
    unit: str
    spent: Callable[[Record], np.ndarray | None]

    @property
    def heading(self) -> str:
        """The title of tables, with the unit where that is another word."""
        unit = "" if self.unit == self.title.lower() else f" ({self.unit})"
        return f"{self.title} to the target{unit}"


COSTS = {
    "rounds": Cost("Rounds", "rounds", lambda run: run.rounds),
    "gigabits": Cost("Traffic", "Gbit", lambda run: run.bits / 1e9),
    "gradients": Cost("Gradients", "minibatch gradients per client", lambda run: run.gradients),
    "hours": Cost("Clock", "h", lambda run: None if run.time is None else run.time / 3600),
}
"""Costs until the target, by name."""

QUALITIES = {
    "final": "Final quality",
    "mean": "Mean over clients",
    "worst_tenth": "Worst tenth of the clients",
}
"""Measures of the last model, by name."""


def is_higher(run: Record, metric: str) -> bool:
    """Returns whether more of a metric is better."""
    return is_higher_better(metric, [run.modes])


def has_diverged(run: Record, metric: str) -> bool:
    """Returns whether a run counts as diverged on a task with some metric.

    It was stopped for that, is not finite, or its metric ends worse than it began. The metric of
    the task decides, not the training loss: a loss that rises may go with accuracies that rise.
    """
    first, last = (float(run.scalars[metric][i]) for i in (0, -1))
    # `not` of a comparison, so that NaN counts as worse
    has_worsened = not (last >= first if is_higher(run, metric) else last <= first)
    return run.outcome.kind in ("diverged", "non-finite") or has_worsened


def cost_to(run: Record, metric: str, target: float, measure: str) -> float:
    """Returns what a run has spent when its metric is first as good as the target.

    Infinite if it never is, or if the run diverged. NaN where the cost is not known, such as hours
    without devices. Observations before the first round do not count: where clients adapt the
    initial model on their own, it can be as good as the target without any message.
    """
    spent = COSTS[measure].spent(run)
    if spent is None:
        return math.nan
    if has_diverged(run, metric):
        return math.inf
    begun = np.asarray(run.rounds) > 0
    curve = np.asarray(run.scalars[metric], float)[begun]
    # the curve is read along what was spent, so "rounds" stands for the unit of the cost
    return read_curve(
        curve, np.asarray(spent, float)[begun], f"rounds_to_{target!r}", is_higher(run, metric)
    )


def quality_of(run: Record, metric: str, decisive: str) -> float:
    """Returns the final value of a metric; NaN for a run that diverged by the decisive one, the
    task's.
    """
    return math.nan if has_diverged(run, decisive) else float(run.scalars[metric][-1])


def best_value(run: Record, metric: str, rounds: float) -> float:
    """Returns the best value of a metric in the first rounds; NaN for a run that diverged."""
    curve = np.asarray(run.scalars[metric], float)[np.asarray(run.rounds) <= rounds]
    if has_diverged(run, metric) or not np.isfinite(curve).any():
        return math.nan
    return float(np.nanmax(curve) if is_higher(run, metric) else np.nanmin(curve))
