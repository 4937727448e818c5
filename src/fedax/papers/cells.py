"""A paper's numbers beside ours, cell by cell."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedax.observe.modes import mode_of
from fedax.results.tables.numbers import Results, Values, stated_modes
from fedax.results.tables.statistics import welch
from fedax.results.tables.summary import is_percent

Status = Literal[
    "within 2 points and two standard errors",
    "within 2 points",
    "within two standard errors",
    "missed",
    "no comparison",
]
POINTS = 2.0
"""Of accuracy: what counts as the paper's number."""

Targets = Mapping[str, Mapping[str, Sequence[float]]]
"""Numbers by task and algorithm: `[mean]` or `[mean, deviation]`."""


class Number(NamedTuple):
    """A mean over runs: of the paper, or ours over units (draws of the data if there are several,
    else seeds).

    The sample deviation is NaN and the number of runs 0 where they are not known.
    """

    mean: float
    deviation: float = math.nan
    count: int = 0


class Cell(NamedTuple):
    """A number of the paper beside ours, in the unit of the paper (accuracies in percent, their
    variances in squared points).

    Attributes:
        runs: ours, of which `diverged` did.
        also: ours by the further readings of the recipe.
    """

    task: str
    algorithm: str
    metric: str
    paper: Number
    ours: Number
    runs: int
    diverged: int = 0
    also: tuple[Number, ...] = ()

    @property
    def difference(self) -> float:
        return self.ours.mean - self.paper.mean

    @property
    def error(self) -> float:
        r"""The joint standard error $s\sqrt{1/n_{paper} + 1/n_{ours}}$ of the two means; NaN if it
        is not known.

        s is the paper's deviation. With our own one in it, a method that scatters more would pass
        more easily.
        """
        if not (self.paper.count and self.ours.count):
            return math.nan
        return self.paper.deviation * math.sqrt(1 / self.paper.count + 1 / self.ours.count)

    @property
    def welch(self) -> float:
        """The p-value of Welch's test on the two means, with the deviations of both sides; NaN if
        it is not known.
        """
        return welch(self.paper, self.ours)

    @property
    def within_points(self) -> bool | None:
        """Whether the means are at most `POINTS` apart; None for metrics other than accuracies."""
        return abs(self.difference) <= POINTS if is_percent(self.metric) else None

    @property
    def within_errors(self) -> bool | None:
        """Whether the means are at most two joint standard errors apart; None where the paper's
        deviation or runs are not known.
        """
        return abs(self.difference) <= 2 * self.error if math.isfinite(self.error) else None

    @property
    def status(self) -> Status:
        """Both verdicts in words; the deviation of our runs has no part in them."""
        if self.within_points:
            return (
                "within 2 points and two standard errors"
                if self.within_errors
                else "within 2 points"
            )
        return "within two standard errors" if self.within_errors else "missed"


def compare_cells(
    results: Results,
    targets: Mapping[str, Targets],
    read: str,
    runs: int | None = None,
    also: Sequence[str] = (),
) -> list[Cell]:
    """Returns the targets of the tasks and algorithms that have run, with our numbers.

    A diverged run counts as the worst of its task, see `Results.of`.

    Args:
        results: the runs.
        targets: the paper's numbers, by metric.
        read: the reading that is compared.
        runs: how many each of the paper's numbers is of, if it says so.
        also: further readings.
    """
    cells = []
    for metric, tasks in targets.items():
        for task, numbers in tasks.items():
            for algorithm, target in numbers.items():
                # targets without runs are left out: at a smaller scale not all tasks and algorithms
                # run
                diverged, run_count = results.diverged(task, algorithm)
                if not run_count:
                    continue
                # of a metric without a direction there is no worst value to count a lost run as
                worst = math.nan if mode_of(metric, stated_modes(results.records)) is None else None
                ours, *also_numbers = (
                    _average(results, results.of(task, algorithm, metric, reading, worst))
                    for reading in (read, *also)
                )
                paper = Number(
                    float(target[0]), float(target[1]) if len(target) > 1 else math.nan, runs or 0
                )
                cells.append(
                    Cell(
                        task,
                        algorithm,
                        metric,
                        paper,
                        ours,
                        run_count,
                        diverged,
                        tuple(also_numbers),
                    )
                )
    return cells


def _average(results: Results, values: Values) -> Number:
    """Returns the mean over the units of statistics; infinite if one of them is."""
    units, _ = results.units(values)
    finite = bool(np.isfinite(units).all())
    # the infinite value itself: a mean of both infinities would be NaN
    mean = float(units.mean()) if finite else float(units[~np.isfinite(units)][0])
    return Number(
        mean, float(units.std(ddof=1)) if finite and len(units) > 1 else math.nan, len(units)
    )
