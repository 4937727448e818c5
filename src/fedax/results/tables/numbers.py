"""The runs of a directory, read as numbers."""

import dataclasses
import math
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedax.core import InvalidInput, UnknownName
from fedax.core.directions import Mode, worst_of
from fedax.observe.modes import is_higher_better, mode_of
from fedax.results import Record
from fedax.results.tables.finals import read_run
from fedax.results.tables.reductions import is_value_reduction
from fedax.results.tables.summary import quantity_of as quantity_of
from fedax.results.tables.summary import scale_of


class Run(NamedTuple):
    """The draw of the data and the seed, by which runs of different algorithms are paired."""

    draw: int
    seed: int


Values = dict[Run, float]


@dataclasses.dataclass(frozen=True)
class Line:
    """A run as the lines of `runs.csv` have it: its numbers without its curves.

    Args:
        task, label, seed, draw: as those of a `Record`.
        diverged: whether it did.
        final: rounds at the last observation.
        numbers: by metric and way to read; in the unit of `scale_of`, NaN if the run has none.
    """

    task: str
    label: str
    seed: int
    draw: int
    diverged: bool
    final: int
    numbers: Mapping[tuple[str, str], float]

    @property
    def scalars(self) -> list[str]:
        """The metrics it has."""
        return list(dict.fromkeys(metric for metric, _ in self.numbers))


AnyRun = Record | Line


@dataclasses.dataclass(frozen=True)
class Results:
    """The runs of an experiment, read as numbers.

    Args:
        records: the runs, with their curves or as lines of `runs.csv`.
        methods: the algorithm that a record's label stands for, where that is not the label itself
            (members of grids).
    """

    records: Sequence[AnyRun]
    methods: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    def of(
        self,
        task: str,
        algorithm: str,
        metric: str,
        read: str,
        worst: float | None = None,
        mode: Mode | None = None,
    ) -> Values:
        """Returns the number of every run, in the unit of `fedax.results.tables.summary.scale_of`.

        A run that has none, because it was stopped as diverging or is not finite, counts as the
        worst of its task: as the worst of the numbers and initial values of all algorithms. Where
        the number is not a value of the metric (rounds until something), it is infinite, as that of
        a run that never gets there.

        Args:
            task: title of the task.
            algorithm: label of the algorithm.
            metric: name of a scalar metric.
            read: how a curve becomes a number, see `fedax.results.tables.reductions.read_curve`.
            worst: what such a run counts as instead.
            mode: direction of a metric that states none.
        """
        values: Values = {}
        # of all methods, because the worst value is taken over the task
        on_task = self._runs_on(task)
        for record in on_task:
            if self.methods.get(record.label, record.label) != algorithm:
                continue
            if metric not in record.scalars:
                raise UnknownName.among(f"metric of {record.label}", metric, record.scalars)
            value = number_of(record, metric, read, on_task)
            if math.isnan(value):
                value = self._worst_value(task, metric, read, mode) if worst is None else worst
            values[Run(record.draw, record.seed)] = value
        return values

    def units(self, values: Values) -> tuple[np.ndarray, str]:
        """Returns the units of statistics.

        These are the means over the seeds of each draw of the data if there are several, else the
        seeds.
        """
        draws = sorted({run.draw for run in values})
        if len(draws) < 2:
            return np.array(list(values.values())), "seeds"
        groups = [
            np.array([value for run, value in values.items() if run.draw == draw]) for draw in draws
        ]
        # means of both infinities are NaN: level, so 0
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(
                [group.mean() for group in groups], nan=0.0, posinf=math.inf, neginf=-math.inf
            ), "draws"

    def diverged(self, task: str, algorithm: str) -> tuple[int, int]:
        """Returns the number of runs that diverged, see `fedax.results.Record.diverged`, and of
        all.
        """
        runs = [
            r.diverged
            for r in self._runs_on(task)
            if self.methods.get(r.label, r.label) == algorithm
        ]
        return sum(runs), len(runs)

    def lost(
        self,
        task: str,
        algorithm: str,
        metric: str,
        read: str,
        among: Container[Run] | None = None,
    ) -> tuple[int, int]:
        """Returns the number of runs that have no number and count as the worst of their task, and
        of all.

        With `among`, only these runs are counted.
        """
        on_task = self._runs_on(task)
        runs = [
            r
            for r in on_task
            if self.methods.get(r.label, r.label) == algorithm
            and metric in r.scalars
            and (among is None or Run(r.draw, r.seed) in among)
        ]
        return sum(math.isnan(number_of(run, metric, read, on_task)) for run in runs), len(runs)

    def algorithms(self, task: str) -> list[str]:
        """Returns the algorithms that have run on a task, in order."""
        return list(dict.fromkeys(self.methods.get(r.label, r.label) for r in self._runs_on(task)))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(record.task for record in self.records))

    def _runs_on(self, task: str) -> list[AnyRun]:
        return [record for record in self.records if record.task == task]

    def _worst_value(self, task: str, metric: str, read: str, default_mode: Mode | None) -> float:
        on_task = self._runs_on(task)
        runs = [record for record in on_task if metric in record.scalars]
        mode: Mode = "max" if higher_is_better(metric, read, on_task, default_mode) else "min"
        # no value of the metric stands for it: the infinity that is worse than all numbers
        if not is_value_reduction(read):
            return worst_of([], mode)
        # the initial value counts too, because a run that diverged may be worse than all finals
        extremes = [
            [number_of(run, metric, "first", on_task), number_of(run, metric, read, on_task)]
            for run in runs
        ]
        return worst_of(extremes, mode)


def number_of(run: AnyRun, metric: str, read: str, among: Sequence[AnyRun] = ()) -> float:
    """Returns the number of a run, in the unit of `scale_of`.

    NaN if it has none, because it diverged. `first`: at the beginning.

    `among` are further runs that may state the direction of the metric.

    Raises:
        InvalidInput: a line that does not have it.
    """
    if isinstance(run, Line):
        # a line has no curve, so it has only the readings of its columns
        if (metric, read) not in run.numbers:
            available = ", ".join(sorted({reading for _, reading in run.numbers}))
            raise InvalidInput.of(f"{metric} of {run.label} in runs.csv", read, available)
        return run.numbers[metric, read]
    if read == "first":
        return float(run.scalars[metric][0] * scale_of(metric))
    return read_run(
        run,
        metric,
        read,
        [record for record in among if isinstance(record, Record)],
        scale_of(metric),
    )


def stated_modes(runs: Sequence[AnyRun]) -> list[Mapping[str, Mode]]:
    """Returns the directions that runs state beside those of the built-in observers."""
    return [run.modes for run in runs if isinstance(run, Record) and run.modes]


def higher_is_better(
    metric: str, read: str = "last", runs: Sequence[AnyRun] = (), default_mode: Mode | None = None
) -> bool:
    """Returns whether a larger number is better. Of rounds and bits until something, and of
    changes, less is.

    `default_mode` is the direction of a metric that neither the runs nor the built-in observers
    state.

    Raises:
        InvalidInput: the direction of the metric is not known.
    """
    if "_to_" in read or read == "mean_change":
        return False
    stated = stated_modes(runs)
    if default_mode is not None and mode_of(metric, stated) is None:
        return default_mode == "max"
    return is_higher_better(metric, stated)
