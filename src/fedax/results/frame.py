"""Runs as data frames of pandas: a row for each observation of a run, or each of its numbers."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedax.core import InvalidInput
from fedax.core.directions import RUN_COLUMNS, Mode, column_name, worst_of
from fedax.observe.modes import is_higher_better, mode_of
from fedax.results.record import Record, by_task
from fedax.results.tables.reductions import is_value_reduction, read_curve
from fedax.results.tables.summary import scale_of


def curves_frame(records: Sequence[Record], metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns a row for each observation of each run.

    Columns: `task`, `method` (its label), `seed`, `draw`, `run` (position in `records`), `lost`
    (see `Record.lost`), `round`, `seconds`, `bits`; `hours` and `joules` on the virtual clock, and
    `gradients`, where any run has them; the metrics, in the unit in which they are recorded. NaN
    where a run has no such number. `attrs["modes"]` are the directions that runs state.

    Args:
        records: the runs.
        metrics: which scalar metrics; by default all that any run has.
    """
    parts = list[pd.DataFrame]()
    for number, run in enumerate(records):
        columns = {
            "task": run.task,
            "method": run.label,
            "seed": run.seed,
            "draw": run.draw,
            "run": number,
            "lost": run.lost,
            "round": run.rounds,
            "seconds": run.seconds,
            "bits": run.bits,
        }
        known = {
            name: values
            for name, values in spent_of(run).items()
            if name in RUN_COLUMNS and values is not None
        }
        parts.append(pd.DataFrame(columns | known | run.scalars))
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=RUN_COLUMNS)
    about = [name for name in RUN_COLUMNS if name in frame]
    names = list(dict.fromkeys([*about, *(metrics or frame)]))
    frame = frame.reindex(columns=names).astype(dict.fromkeys(names[7:], float))
    frame.attrs["modes"] = {
        name: mode for run in records for name, mode in (run.modes or {}).items()
    }
    return frame


def curves_csv(records: Sequence[Record]) -> str:
    """Returns all scalar metrics of all runs as one long table: one row per run and observation.
    Heads name units. A number that is not finite or not there is an empty cell.
    """
    frame = curves_frame(records).drop(columns=["run", "lost", "gradients"], errors="ignore")
    heads = {"method": "algorithm", "hours": "clock_seconds", "joules": "clock_joules"}
    frame = frame.astype({"bits": int}).rename(columns=heads)
    if "clock_seconds" in frame:
        frame["clock_seconds"] *= 3600
    return frame.rename(columns=column_name).to_csv(index=False, float_format="%.9g")


def numbers_frame(
    records: Sequence[Record],
    reads: Mapping[str, str] | None = None,
    metrics: Collection[str] | None = None,
) -> pd.DataFrame:
    """Returns a row for each run and scalar metric, with the number that its curve is reduced to.

    A run without a number, see `read_run`, counts as the worst of its task: of all runs' numbers
    and initial values. The worst is infinite where the number is no value of the metric (rounds
    until something, which such a run does not reach, or changes), and NaN for a metric without a
    direction.

    Columns: `task`, `method`, `draw`, `seed`, `run` (position in `records`), `diverged`, `metric`,
    `mode` (its direction, empty if unknown), `read` (the reduction), `value` in the unit of
    `scale_of`, and `lost`, whether the run has none.

    Args:
        records: the runs.
        reads: reductions by task, see `read_curve`; the last values by default. Epsilon is always
            what a run has spent by its end.
        metrics: which; all by default.
    """
    positions = {id(run): position for position, run in enumerate(records)}
    rows = list[tuple[Any, ...]]()
    for task, runs in by_task(records).items():
        names = metrics or list(dict.fromkeys(name for run in runs for name in run.scalars))
        for metric in names:
            read = "last" if metric == "epsilon" else (reads or {}).get(task, "last")
            measured = [run for run in runs if metric in run.scalars]
            mode = mode_of(metric, [run.modes for run in runs])
            values = np.array([read_run(run, metric, read, mode) for run in measured])
            lost = np.isnan(values)
            firsts = [float(run.scalars[metric][0]) * scale_of(metric) for run in measured]
            values = np.where(lost, _worst_number([*values, *firsts], read, mode), values)
            for run, value, is_lost in zip(measured, values, lost, strict=True):
                about = task, run.label, run.draw, run.seed, positions[id(run)], run.diverged
                rows.append((*about, metric, mode or "", read, value, is_lost))
    heads = ["task", "method", "draw", "seed", "run", "diverged"]
    return pd.DataFrame(rows, columns=[*heads, "metric", "mode", "read", "value", "lost"])


def _worst_number(known: Sequence[float], read: str, mode: Mode | None) -> float:
    if "_to_" in read or read == "mean_change":
        return math.inf
    if mode is None:
        return math.nan
    return worst_of(known if is_value_reduction(read) else [], mode)


def read_run(run: Record, metric: str, read: str, mode: Mode | None) -> float:
    """Returns the number of a run in the unit of `scale_of`.

    NaN if it has none: a stop rule found that it diverged, or something was not finite, and the
    reading is not `best_observed`.

    Args:
        run: the run.
        metric: a scalar metric that it has.
        read: how a curve becomes a number, see `read_curve`.
        mode: the direction of the metric.

    Raises:
        InvalidInput: a reduction that needs a direction or a clock, of a run without one.
    """
    if run.lost and read != "best_observed":
        return math.nan
    if mode is None and (read.startswith("best") or "_to_" in read):
        # refuses
        is_higher_better(metric)
    curve = np.asarray(run.scalars[metric], float) * scale_of(metric)
    value = read_curve(curve, _positions(run, read), read, mode == "max")
    # infinite rounds are a number (never), an infinite loss is none
    return value if math.isfinite(value) or not is_value_reduction(read) else math.nan


def describe_early_ends(runs: Sequence[Record]) -> str:
    """Returns a sentence about runs that ended before the others, empty if none did."""
    ends = {int(run.rounds[-1]) for run in runs}
    lost = sum(run.lost for run in runs)
    if len(ends) < 2 and not lost:
        return ""
    diverged = f"; the {lost} that diverged count as the worst from there" if lost else ""
    return f"A run that ended early keeps its last value{diverged}."


def _positions(run: Record, read: str) -> np.ndarray:
    """Returns the positions of a run's observations in the unit of `<unit>_to_<x>`, in rounds for
    other reductions.
    """
    unit, _, level = read.partition("_to_")
    positions = spent_of(run)[unit] if level else run.rounds
    if positions is None:
        allowed = "another reduction, as some of these runs have no devices"
        raise InvalidInput.of("read", read, allowed)
    return positions


def spent_of(run: Record) -> dict[str, np.ndarray | None]:
    """Returns what a run had spent at its observations, by unit; None where it is not known."""
    return {
        "rounds": run.rounds,
        "gradients": run.gradients,
        "gigabits": run.bits / 1e9,
        "hours": None if run.time is None else run.time / 3600,
        "joules": run.energy,
    }
