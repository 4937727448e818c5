"""The numbers of single runs, of which means are formed. A run without one counts as the worst."""

import math
from collections.abc import Sequence

import numpy as np

from fedax.core import InvalidInput
from fedax.core.directions import worst_of
from fedax.observe.modes import is_higher_better, mode_of
from fedax.results.record import Record
from fedax.results.tables.reductions import is_value_reduction, read_curve


def is_lost(run: Record) -> bool:
    """Returns whether a run has no final value: a stop rule found that it diverged, or something
    was not finite.
    """
    return run.outcome.kind in ("diverged", "non-finite")


def read_run(
    run: Record, metric: str, read: str, among: Sequence[Record] = (), scale: float = 1.0
) -> float:
    """Returns the number of a run, NaN if it has none because it diverged or is not finite.

    Args:
        run: the run.
        metric: a scalar metric that it has.
        read: how a curve becomes a number, see `read_curve`.
        among: further runs that may state the direction of the metric.
        scale: by which the curve is multiplied before it is read.
    """
    if is_lost(run):
        return math.nan
    positions = _positions(run, read)
    # only these readings depend on the direction: others work for metrics without one
    directed = read == "best" or "_to_" in read
    higher = directed and is_higher_better(metric, [record.modes for record in (run, *among)])
    value = read_curve(np.asarray(run.scalars[metric], float) * scale, positions, read, higher)
    # infinite rounds are a number (never), an infinite loss is none
    return value if math.isfinite(value) or not is_value_reduction(read) else math.nan


def _positions(run: Record, read: str) -> np.ndarray:
    """Returns the positions of a run's observations in the unit of `<unit>_to_<x>`, in rounds for
    other reductions.
    """
    unit, _, level = read.partition("_to_")
    if level and unit in ("hours", "joules"):
        values = run.time if unit == "hours" else run.energy
        if values is None:
            raise InvalidInput.of(
                "read", read, "another reduction, as some of these runs have no devices"
            )
        return values / 3600 if unit == "hours" else values
    return run.bits / 1e9 if level and unit == "gigabits" else run.rounds


def worst_value(runs: Sequence[Record], metric: str, read: str, scale: float = 1.0) -> float:
    """Returns what a run without a number counts as: the worst of all runs' numbers and initial
    values.

    Infinite where the number is no value of the metric (rounds until something, which such a run
    does not reach, or changes), and NaN for a metric whose direction is not known.
    """
    if "_to_" in read or read == "mean_change":
        return math.inf
    mode = mode_of(metric, [run.modes for run in runs])
    if mode is None:
        return math.nan
    if not is_value_reduction(read):
        return worst_of([], mode)
    measured = [run for run in runs if metric in run.scalars]
    # pairs of the initial and the final number of each run
    return worst_of(
        [
            [run.scalars[metric][0] * scale, read_run(run, metric, read, runs, scale)]
            for run in measured
        ],
        mode,
    )


def read_runs(
    runs: Sequence[Record], metric: str, read: str, among: Sequence[Record] = (), scale: float = 1.0
) -> tuple[np.ndarray, int]:
    """Returns the number of every run, and how many have none and count as the worst.

    Args:
        runs: the runs, all with the metric.
        metric: a scalar metric.
        read: how a curve becomes a number, see `read_curve`.
        among: all runs of the task, of which the worst is taken; `runs` by default.
        scale: by which curves are multiplied before they are read.
    """
    among = among or runs
    values = np.array([read_run(run, metric, read, among, scale) for run in runs], float)
    lost = np.isnan(values)
    return np.where(
        lost, worst_value(among, metric, read, scale) if lost.any() else math.nan, values
    ), int(lost.sum())
