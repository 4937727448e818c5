"""Runs as data frames of pandas: a row for each run, or for each of its observations."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedax.results.record import Record


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
        "outcome": [run.ending for run in records],
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
