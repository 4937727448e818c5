"""The runs of an experiment, read as numbers by draw of the data and seed."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedax.core import UnknownName
from fedax.observe.modes import is_higher_better
from fedax.results import Record
from fedax.results.compare import units_of
from fedax.results.frame import numbers_frame


class Run(NamedTuple):
    """The draw of the data and the seed, by which runs of different algorithms are paired."""

    draw: int
    seed: int


Values = dict[Run, float]


class Results:
    """The runs of an experiment, read as numbers.

    Args:
        records: the runs.
        methods: the algorithm that a record's label stands for, where that is not the label itself
            (members of grids).
    """

    def __init__(self, records: Iterable[Record], methods: Mapping[str, str] | None = None) -> None:
        names = methods or {}
        self.records = [run.with_label(names.get(run.label, run.label)) for run in records]
        self.modes = [run.modes for run in self.records]
        self._read: dict[tuple[str, str, str], pd.DataFrame] = {}

    def of(
        self,
        task: str,
        algorithm: str,
        metric: str,
        read: str,
        worst: float | None = None,
    ) -> Values:
        """Returns the number of every run, in the unit of `scale_of`.

        A run that has none, because it was stopped as diverging or is not finite, counts as the
        worst of its task: as the worst of the numbers and initial values of all algorithms. Where
        the number is not a value of the metric (rounds until something), it is infinite, as that of
        a run that never gets there.

        Args:
            task: title of the task.
            algorithm: label of the algorithm.
            metric: name of a scalar metric.
            read: how a curve becomes a number, see `read_curve`.
            worst: what such a run counts as instead.

        Raises:
            UnknownName: a metric that the algorithm's runs do not have.
        """
        on_task = [run for run in self.records if run.task == task]
        for run in on_task:
            if run.label == algorithm and metric not in run.scalars:
                raise UnknownName.among(f"metric of {algorithm}", metric, run.scalars)
        key = task, metric, read
        if key not in self._read:
            self._read[key] = numbers_frame(on_task, {task: read}, [metric])
        rows = self._read[key]
        values = rows["value"]
        if worst is not None:
            values = values.mask(rows["lost"], worst)
        elif rows["lost"].to_numpy().any():
            self.higher_is_better(metric, read)  # refuses a metric without a direction
        runs = zip(rows["method"], rows["draw"], rows["seed"], values, strict=True)
        return {Run(draw, seed): float(v) for label, draw, seed, v in runs if label == algorithm}

    def units(self, values: Values) -> tuple[np.ndarray, str]:
        """Returns the units of statistics, see `units_of`."""
        return units_of(np.array([*values.values()]), np.array([run.draw for run in values]))

    def higher_is_better(self, metric: str, read: str = "last") -> bool:
        """Returns whether a larger number is better. Of rounds and bits until something, and of
        changes, less is.

        Args:
            metric: name of the metric.
            read: how its curve becomes a number.

        Raises:
            InvalidInput: the direction of the metric is not known.
        """
        if "_to_" in read or read == "mean_change":
            return False
        return is_higher_better(metric, self.modes)

    def diverged(self, task: str, algorithm: str) -> tuple[int, int]:
        """Returns the number of runs that diverged, see `fedax.results.Record.diverged`, and of
        all.
        """
        runs = [r.diverged for r in self.records if (r.task, r.label) == (task, algorithm)]
        return sum(runs), len(runs)

    def algorithms(self, task: str) -> list[str]:
        """Returns the algorithms that have run on a task, in order."""
        return list(dict.fromkeys(run.label for run in self.records if run.task == task))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(run.task for run in self.records))
