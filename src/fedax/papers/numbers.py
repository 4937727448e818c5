"""The runs of an experiment, read as numbers by draw of the data and seed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedax.core import UnknownName
from fedax.observe.modes import is_higher_better
from fedax.results import Record
from fedax.results.frame import numbers_frame
from fedax.results.record import by_task
from fedax.results.tables.statistics import units_of


class Results:
    """The runs of an experiment, read as numbers.

    Args:
        records: the runs.

    Attributes:
        tasks: the runs by task.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.tasks = by_task(records)
        self._read: dict[tuple[str, str, str], pd.DataFrame] = {}

    def of(
        self,
        task: str,
        algorithm: str | None,
        metric: str,
        read: str,
        worst: float | None = None,
    ) -> pd.Series:
        """Returns the number of every run, in the unit of `scale_of`, by the draw of the data and
        the seed, by which runs of different algorithms are paired.

        A run that has none, because it was stopped as diverging or is not finite, counts as the
        worst of its task: as the worst of the numbers and initial values of all algorithms. Where
        the number is not a value of the metric (rounds until something), it is infinite, as that of
        a run that never gets there.

        Args:
            task: title of the task.
            algorithm: its label.
            metric: name of a scalar metric.
            read: how a curve becomes a number, see `read_curve`.
            worst: what such a run counts as instead.

        Raises:
            UnknownName: a metric that the algorithm's runs do not have.
        """
        key = task, metric, read
        runs = self.tasks.get(task, [])
        for run in runs:
            if run.label == algorithm and metric not in run.scalars:
                raise UnknownName.among(f"metric of {algorithm}", metric, run.scalars)
        if key not in self._read:
            frame = numbers_frame(runs, {task: read}, [metric])
            self._read[key] = frame.set_index(["draw", "seed"])
        rows = self._read[key]
        if worst is None and rows["lost"].to_numpy().any():
            self.higher_is_better(metric, read)  # refuses a metric without a direction
        rows = rows.loc[rows["method"] == algorithm]
        values: Any = rows["value"].astype(float)
        return values if worst is None else values.mask(rows["lost"].astype(bool), worst)

    def units(self, values: pd.Series) -> tuple[np.ndarray, str]:
        """Returns the units of statistics, see `units_of`."""
        return units_of(values.to_numpy(), values.index.get_level_values("draw").to_numpy())

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
        return is_higher_better(metric, [run.modes for run in self.records])
