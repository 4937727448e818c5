"""A paper's numbers beside ours, cell by cell."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedax.experiments.recipes.claims import Results
from fedax.experiments.recipes.statistics import welch
from fedax.report.summary import is_percent

Status = Literal["within 2 points", "within two joint standard errors", "missed"]
POINTS = 2.0
"""Of accuracy: what counts as the paper's number."""

Targets = Mapping[str, Mapping[str, Sequence[float]]]
"""Numbers by task and algorithm: `[mean]` or `[mean, deviation]`."""


class Number(NamedTuple):
    """A mean over runs: of the paper, or ours over units (draws of the data if there are several, else seeds).

    The sample deviation is NaN and the number of runs 0 where they are not known.
    """

    mean: float
    deviation: float = math.nan
    count: int = 0


class Cell(NamedTuple):
    """A number of the paper beside ours, in the unit of the paper (accuracies in percent, their variances in squared points).

    Attributes:
        runs: ours, of which `diverged` did.
    """

    task: str
    algorithm: str
    metric: str
    paper: Number
    ours: Number
    runs: int
    diverged: int = 0

    @property
    def difference(self) -> float:
        return self.ours.mean - self.paper.mean

    @property
    def error(self) -> float:
        r"""The joint standard error $s\sqrt{1/n_{paper} + 1/n_{ours}}$ of the two means; NaN if it is not known.

        s is the paper's deviation. With our own one in it, a method that scatters more would pass more easily.
        """
        if not (self.paper.count and self.ours.count):
            return math.nan
        return self.paper.deviation * math.sqrt(1 / self.paper.count + 1 / self.ours.count)

    @property
    def welch(self) -> float:
        """The p-value of Welch's test on the two means, with the deviations of both sides; NaN if it is not known."""
        return welch(self.paper, self.ours)

    @property
    def status(self) -> Status:
        """Whether our number is the paper's: by an absolute tolerance, or else by chance alone; how ours scatter has no part."""
        if is_percent(self.metric) and abs(self.difference) <= POINTS:
            return "within 2 points"
        return "within two joint standard errors" if abs(self.difference) <= 2 * self.error else "missed"


def beside(results: Results, targets: Mapping[str, Targets], read: str, runs: int | None = None) -> list[Cell]:
    """The targets, by metric, of the tasks and algorithms that have run; `runs` is how many the paper has for a number.

    A diverged run counts as the worst of its task, see `Results.of`.
    """
    cells = []
    for metric, tasks in targets.items():
        for task, numbers in tasks.items():
            for algorithm, target in numbers.items():
                values = results.of(task, algorithm, metric, read)
                if not values:
                    continue
                units, _ = results.units(values)
                finite = bool(np.isfinite(units).all())
                mean = float(units.mean()) if finite else float(units[~np.isfinite(units)][0])
                ours = Number(mean, float(units.std(ddof=1)) if finite and len(units) > 1 else math.nan, len(units))
                paper = Number(float(target[0]), float(target[1]) if len(target) > 1 else math.nan, runs or 0)
                bad, _ = results.diverged(task, algorithm)
                cells.append(Cell(task, algorithm, metric, paper, ours, len(values), bad))
    return cells
