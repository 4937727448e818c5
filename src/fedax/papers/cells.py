"""A paper's numbers beside ours, as a frame."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import scipy  # `scipy.stats` is imported on demand

from fedax.observe.modes import mode_of
from fedax.papers.numbers import Results
from fedax.results.tables.summary import is_percent

POINTS = 2.0
"""Of accuracy: what counts as the paper's number."""

STATUSES = [
    "within 2 points and two standard errors",
    "within 2 points",
    "within two standard errors",
    "missed",
]
"""Whether a number is the paper's."""

COLUMNS = (
    *("task", "algorithm", "metric", "paper_mean", "paper_deviation", "paper_runs"),
    *("ours_mean", "ours_deviation", "units", "runs", "diverged", "difference", "joint_error"),
    *("welch_p", "within_2_points", "within_two_errors", "status"),
)
"""Of the frame, in the order of `results.csv`."""

Targets = Mapping[str, Mapping[str, Sequence[float]]]
"""Numbers by task and algorithm: `[mean]` or `[mean, deviation]`."""


def compare_cells(
    results: Results,
    targets: Mapping[str, Targets],
    read: str,
    paper_runs: int | None = None,
    also: Sequence[str] = (),
) -> pd.DataFrame:
    r"""Returns a row for each number of the paper whose task and algorithm have run.

    A diverged run counts as the worst of its task, see `Results.of`. Numbers are in the unit of the
    paper (accuracies in percent, their variances in squared points). Columns:

    - `task`, `algorithm`, `metric`; `paper_mean`, `paper_deviation`, `paper_runs`.
    - `ours_mean`, `ours_deviation`: over `units` (draws of the data if there are several, else
      seeds); `runs`, of which `diverged` did.
    - `difference`: ours minus the paper's. `joint_error`: $s\sqrt{1/n_{paper} + 1/n_{ours}}$, where
      s is the paper's deviation: with ours, a method that scatters more would pass more easily.
      `welch_p`: of Welch's test, with the deviations of both sides.
    - `within_2_points`: of accuracies, whether the means are at most `POINTS` apart;
      `within_two_errors`: whether they are at most two joint standard errors apart (1 or 0);
      `status`: both in words.
    - `<reading>_mean` and `<reading>_deviation` of further readings.

    What is not known is missing.

    Args:
        results: the runs.
        targets: the paper's numbers, by metric.
        read: the reading that is compared.
        paper_runs: how many each of the paper's numbers is of, if it says so.
        also: further readings.
    """
    rows = []
    for metric, tasks in targets.items():
        # of a metric without a direction there is no worst value to count a lost run as
        worst = math.nan if mode_of(metric, results.modes) is None else None
        for task, numbers in tasks.items():
            for algorithm, (mean, *deviation) in numbers.items():
                diverged, runs = results.diverged(task, algorithm)
                # at a smaller scale not all tasks and algorithms run
                if not runs:
                    continue
                row = {
                    "task": task,
                    "algorithm": algorithm,
                    "metric": metric,
                    "paper_mean": mean,
                    "paper_deviation": deviation[0] if deviation else math.nan,
                    "paper_runs": paper_runs or math.nan,
                    "runs": runs,
                    "diverged": diverged,
                }
                for name, reading in {"ours": read, **{other: other for other in also}}.items():
                    values = results.of(task, algorithm, metric, reading, worst)
                    units = pd.Series(results.units(values)[0])
                    row[f"{name}_mean"] = units.mean(skipna=False)
                    row[f"{name}_deviation"] = units.std(skipna=False)
                    row["units"] = len(units)
                rows.append(row)
    further = [f"{reading}_{number}" for reading in also for number in ("mean", "deviation")]
    if not rows:
        return pd.DataFrame(columns=[*COLUMNS, *further])
    cells = pd.DataFrame(rows)
    difference = cells["ours_mean"] - cells["paper_mean"]
    error = cells["paper_deviation"] * np.sqrt(1 / cells["paper_runs"] + 1 / cells["units"])
    has_test = (cells["paper_runs"] > 1) & (cells["units"] > 1)
    has_test &= cells[["paper_deviation", "ours_deviation"]].max(axis=1) > 0
    ours = cells[["ours_mean", "ours_deviation", "units"]].where(has_test).T.to_numpy()
    paper = cells[["paper_mean", "paper_deviation", "paper_runs"]].T.to_numpy()
    welch = scipy.stats.ttest_ind_from_stats(*ours, *paper, equal_var=False)
    points = (difference.abs() <= POINTS) & cells["metric"].map(is_percent)
    errors = difference.abs() <= 2 * error
    cells = cells.assign(
        difference=difference,
        joint_error=error,
        welch_p=welch.pvalue,
        within_2_points=points.astype("Int64").where(cells["metric"].map(is_percent)),
        within_two_errors=errors.astype("Int64").where(error.notna()),
        status=np.select([points & errors, points, errors], STATUSES[:3], STATUSES[3]),
    )
    return cells.reindex(columns=[*COLUMNS, *further])
