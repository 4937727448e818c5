"""A paper's numbers beside ours, as a frame."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy  # `scipy.stats` is imported on demand

from fedax.papers.numbers import Results

COLUMNS = (
    "task",
    "algorithm",
    "metric",
    "paper_mean",
    "paper_deviation",
    "paper_runs",
    "ours_mean",
    "ours_deviation",
    "units",
    "runs",
    "diverged",
    "difference",
    "joint_error",
    "z",
)
"""Of the frame, in the order of `results.csv`."""


def compare_cells(
    results: Results,
    targets: Mapping[tuple[str, str, str], Sequence[float]],
    read: str,
    paper_runs: int | None = None,
    also: Sequence[str] = (),
) -> pd.DataFrame:
    r"""Returns a row for each number of the paper whose task and algorithm have run.

    A cell with a run that has no number, see `fedax.results.frame.read_run`, has none: nothing
    stands for what was not observed. Numbers are in the unit of the paper (accuracies in percent,
    their variances in squared points). Columns:

    - `task`, `algorithm`, `metric`; `paper_mean`, `paper_deviation`, `paper_runs`.
    - `ours_mean`, `ours_deviation`: over `units` (draws of the data if there are several, else
      seeds); `runs`, of which `diverged` did.
    - `difference`: ours minus the paper's. `joint_error`: $s\sqrt{1/n_{paper} + 1/n_{ours}}$, where
      s is the paper's deviation: with ours, a method that scatters more would pass more easily.
      `z`: the difference over the joint error.
    - `<reading>_mean` and `<reading>_deviation` of further readings.

    What is not known is missing.

    Args:
        results: the runs.
        targets: the paper's numbers by metric, task and algorithm: `[mean]` or `[mean, deviation]`.
        read: the reading that is compared.
        paper_runs: how many each of the paper's numbers is of, if it says so.
        also: further readings.
    """
    rows = []
    for (metric, task, algorithm), (mean, *deviation) in targets.items():
        diverged = [run.diverged for run in results.tasks.get(task, []) if run.label == algorithm]
        # at a smaller scale not all tasks and algorithms run
        if not diverged:
            continue
        row: list[Any] = [task, algorithm, metric, mean, *(deviation or [math.nan])]
        row += [paper_runs or math.nan, len(diverged), sum(diverged)]
        for reading in (read, *also):
            values = results.of(task, algorithm, metric, reading, worst=math.nan)
            units = pd.Series(results.units(values)[0])
            row += [units.mean(skipna=False), units.std(skipna=False)]
        rows.append([*row, len(units)])
    further = [f"{reading}_{number}" for reading in also for number in ("mean", "deviation")]
    names = [*COLUMNS[:6], "runs", "diverged", "ours_mean", "ours_deviation", *further, "units"]
    cells = pd.DataFrame(rows, columns=names)
    error = _joint_error(cells["paper_deviation"], cells["paper_runs"], cells["units"])
    difference = cells["ours_mean"] - cells["paper_mean"]
    cells = cells.assign(difference=difference, joint_error=error, z=difference / error)
    return cells.reindex(columns=[*COLUMNS, *further])


def _joint_error(deviation: Any, paper_runs: Any, units: Any) -> Any:
    error = deviation * np.sqrt(1 / paper_runs + 1 / units)
    return error.where(error > 0)


def summarize_z(cells: pd.DataFrame) -> pd.DataFrame:
    r"""Returns how the differences to a paper's numbers are distributed, a row for each metric and
    algorithm.

    If our runs are the paper's, up to chance, z has mean 0 and deviation 1, and $\sum z^2$ of k
    cells is chi-square distributed with k degrees of freedom. Columns:

    - `metric`, `algorithm`; `cells`, the number of cells with a z; `fewest`, the smallest
      number of units of a cell.
    - `difference`: the mean. `rms`: of z. `p`: the probability of a sum of squares at least as
      large.
    - `rms_of_others`: of z, if the numbers of the paper's other algorithms on the same tasks are
      taken in place of the algorithm's own: what cells that say nothing would reach.

    Args:
        cells: of `compare_cells`.
    """
    tested = cells.dropna(subset=["z"])
    pairs: Any = tested.merge(tested, on=["metric", "task"], suffixes=("", "_other"))
    # two forms of a method have the same number of the paper
    pairs = pairs[pairs["paper_mean"] != pairs["paper_mean_other"]]
    error = _joint_error(pairs["paper_deviation_other"], pairs["paper_runs_other"], pairs["units"])
    pairs["z"] = (pairs["ours_mean"] - pairs["paper_mean_other"]) / error
    keys = ["metric", "algorithm"]
    rms_of_others = pairs["z"].pow(2).groupby([pairs[key] for key in keys]).mean().pow(0.5)
    groups = tested.groupby(keys, sort=False)
    squares = groups["z"].agg(lambda z: (z**2).sum()).astype(float)
    table = groups.agg(
        cells=("z", "size"),
        fewest=("units", "min"),
        difference=("difference", "mean"),
    )
    table["rms"] = np.sqrt(squares / table["cells"])
    table["p"] = scipy.stats.chi2.sf(squares, table["cells"])
    return table.assign(rms_of_others=rms_of_others).reset_index()
