"""Runs as data frames of pandas: a row for each run, each of its observations, or each number."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from fedax.core import InvalidInput
from fedax.core.directions import Mode, worst_of
from fedax.observe.modes import is_higher_better, mode_of
from fedax.results.record import Record, by_task
from fedax.results.tables.reductions import is_value_reduction, read_curve
from fedax.results.tables.summary import scale_of


def runs_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Returns a row for each run, with what it has spent and its metrics at the last observation.

    Columns are those of `curves_frame`, and `outcome` and `diverged`.

    >>> end, start = np.array([0, 5]), np.zeros(2)
    >>> from fedax.core import Outcome
    >>> loss = {"train_loss": np.array([2.0, 1.0])}
    >>> run = Record("T", "FedAvg", 0, 0, end, start, start, loss, Outcome())
    >>> runs_frame([run])[["method", "round", "train_loss", "outcome"]].values.tolist()
    [['FedAvg', 5, 1.0, 'ok']]
    """
    last = curves_frame(records).groupby("run", sort=False).tail(1).reset_index(drop=True)
    ends = {
        "outcome": [str(run.outcome) for run in records],
        "diverged": [run.diverged for run in records],
    }
    return last.assign(**ends)


def curves_frame(records: Sequence[Record], metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns a row for each observation of each run.

    Columns: `task`, `method` (its label), `seed`, `draw`, `run` (position in `records`), `round`,
    `bits`, `seconds`; `hours` and `joules` on the virtual clock, and `gradients`, where any run has
    them; the metrics, in the unit in which they are recorded. NaN where a run has no such number.

    Args:
        records: the runs.
        metrics: which scalar metrics; by default all that any run has.
    """
    scalars = [run.scalars for run in records]
    names = metrics or list(dict.fromkeys(name for values in scalars for name in values))
    counts = [len(run.rounds) for run in records]

    def join(columns: Sequence[Any]) -> np.ndarray:
        filled = [
            np.full(count, np.nan) if values is None else np.asarray(values, float)
            for values, count in zip(columns, counts, strict=True)
        ]
        return np.concatenate([np.empty(0), *filled])

    columns: dict[str, Any] = {
        "task": np.repeat(np.array([run.task for run in records], object), counts),
        "method": np.repeat(np.array([run.label for run in records], object), counts),
        "seed": np.repeat([run.seed for run in records], counts),
        "draw": np.repeat([run.draw for run in records], counts),
        "run": np.repeat(np.arange(len(records)), counts),
        "round": join([run.rounds for run in records]).astype(int),
        "bits": join([run.bits for run in records]),
        "seconds": join([run.seconds for run in records]),
    }
    if any(run.time is not None for run in records):
        columns["hours"] = join([run.time for run in records]) / 3600
        columns["joules"] = join([run.energy for run in records])
    if any(run.gradients is not None for run in records):
        columns["gradients"] = join([run.gradients for run in records])
    for name in names:
        columns[name] = join([values.get(name) for values in scalars])
    return pd.DataFrame(columns)


def numbers_frame(
    records: Sequence[Record],
    reads: Mapping[str, str] | None = None,
    metrics: Collection[str] | None = None,
) -> pd.DataFrame:
    """Returns a row for each run and scalar metric, with the number that its curve is reduced to.

    Columns: `task`, `method`, `draw`, `seed`, `rounds`, `diverged`, `metric`, `mode` (its
    direction, empty if unknown), `read` (the reduction), `first` (the initial value) and `value`,
    both in the unit of `scale_of`. The value of a run without one is NaN: see `read_run`.

    Args:
        records: the runs.
        reads: reductions by task, see `read_curve`; the last values by default. Epsilon is always
            what a run has spent by its end.
        metrics: which; all by default.
    """
    names = ["task", "method", "draw", "seed", "rounds", "diverged"]
    rows = []
    for task, runs in by_task(records).items():
        read = (reads or {}).get(task, "last")
        stated = [run.modes for run in runs]
        modes: dict[str, Mode | None] = {}
        for run in runs:
            about = (task, run.label, run.draw, run.seed, int(run.rounds[-1]), run.diverged)
            for metric, curve in run.scalars.items():
                if metrics is not None and metric not in metrics:
                    continue
                if metric not in modes:
                    modes[metric] = mode_of(metric, stated)
                reading = "last" if metric == "epsilon" else read
                first = float(curve[0]) * scale_of(metric)
                value = read_run(run, metric, reading, modes[metric])
                rows.append((*about, metric, modes[metric] or "", reading, first, value))
    return pd.DataFrame(rows, columns=[*names, "metric", "mode", "read", "first", "value"])


def read_run(run: Record, metric: str, read: str, mode: Mode | None) -> float:
    """Returns the number of a run in the unit of `scale_of`.

    NaN if it has none: a stop rule found that it diverged, or something was not finite.

    Args:
        run: the run.
        metric: a scalar metric that it has.
        read: how a curve becomes a number, see `read_curve`.
        mode: the direction of the metric.

    Raises:
        InvalidInput: a reduction that needs a direction or a clock, of a run without one.
    """
    if is_lost(run):
        return math.nan
    if mode is None and (read == "best" or "_to_" in read):
        # refuses
        is_higher_better(metric)
    curve = np.asarray(run.scalars[metric], float) * scale_of(metric)
    value = read_curve(curve, _positions(run, read), read, mode == "max")
    # infinite rounds are a number (never), an infinite loss is none
    return value if math.isfinite(value) or not is_value_reduction(read) else math.nan


def is_lost(run: Record) -> bool:
    """Returns whether a run has no final value: a stop rule found that it diverged, or something
    was not finite.
    """
    return run.outcome.kind in ("diverged", "non-finite")


def _positions(run: Record, read: str) -> np.ndarray:
    """Returns the positions of a run's observations in the unit of `<unit>_to_<x>`, in rounds for
    other reductions.
    """
    unit, _, level = read.partition("_to_")
    if not level or unit == "rounds":
        return run.rounds
    if unit == "gigabits":
        return run.bits / 1e9
    values = run.time if unit == "hours" else run.energy
    if values is None:
        allowed = "another reduction, as some of these runs have no devices"
        raise InvalidInput.of("read", read, allowed)
    return values / 3600 if unit == "hours" else values


def fill_lost(values: np.ndarray, firsts: np.ndarray, read: str, mode: str | None) -> np.ndarray:
    """Returns numbers of one task and metric, in which a run without one counts as the worst of all
    runs' numbers and initial values.

    The worst is infinite where the number is no value of the metric (rounds until something, which
    such a run does not reach, or changes), and NaN for a metric without a direction.

    Args:
        values: NaN where a run has none.
        firsts: initial values.
        read: the reduction.
        mode: direction of the metric, None or empty if it has none.
    """
    worst = math.nan
    if "_to_" in read or read == "mean_change":
        worst = math.inf
    elif mode:
        worst = worst_of([values, firsts] if is_value_reduction(read) else [], cast(Mode, mode))
    return np.where(np.isnan(values), worst, values)
