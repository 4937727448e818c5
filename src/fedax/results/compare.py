"""Comparisons of methods: means, deviations and paired tests against the best, as one frame."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedax.core import InvalidInput
from fedax.results.frame import numbers_frame
from fedax.results.record import Record, by_label, by_task, check_metrics, finished
from fedax.results.tables.statistics import LEVEL, deviation_of, effect_of, holm, units_of
from fedax.results.tables.summary import column_of, columns_of

WATCHED = ("dissimilarity", "weight_gap")
"""Metrics with a direction by which no method is better than another."""


def compare_runs(
    records: Sequence[Record],
    reads: Mapping[str, str] | None = None,
    metrics: Sequence[str] | None = None,
    selected: Mapping[str, Mapping[str, str]] | None = None,
) -> pd.DataFrame:
    """Compares the methods of each task in each metric: means, and paired tests of all others
    against the best mean.

    The means, the choice of the best and the tests rest on the same runs: those whose draw of the
    data and seed all methods have. Further runs are left out and counted: with them, the method
    whose seeds happened to be easy would look better. If the methods have no run in common, the
    means are over each method's own runs, and nothing is compared.

    Single precision carries six digits: means that agree in them are equal, and so are numbers of a
    pair. A method that is equal to the best in all runs is level with it, is not tested, and does
    not count in Holm's correction.

    Runs are paired by their seed and the draw of the data; of several draws the means over their
    seeds are compared, and each draw counts alike in the mean. The tests are Student's, or sign
    tests where a number is infinite, and Holm corrects for their number. Runs without a final value
    count as the worst of their task. A method all of whose runs diverged is not marked, nor is any
    where all have the same mean. Interrupted runs have no final value either, but they may go on:
    they are left out and counted.

    Args:
        records: the runs.
        reads: how curves become numbers, by task, see `read_curve`; their last values by default.
        metrics: which; by default those that reports show.
        selected: by task and method, the title of what a grid selected and stands for it.

    Returns:
        A row for each task, metric and method, with the columns

        - `table`, `column`: the heads below which its number stands, with the unit. A table is of a
          task, and its columns of metrics; of one metric and several tasks it is the reverse.
        - `task`, `metric`, `read`, `method`; `selected`, empty without a grid.
          `own`: whether clients of the task have models of their own.
        - `runs`, `lost`: how many there are, and how many of them have no number; `units`: how many
          draws of the data, or runs of a single draw; `left_out`: further runs; `interrupted`: how
          many were, which no other number counts; `diverged`: whether any run did.
        - `mean`, `deviation`: of the units, in the unit of the column; NaN where all runs are lost,
          and for the deviation of a single one.
        - `top`: whether it is the best, or tested and not significantly worse.
        - `best`: the method with the best mean; `difference`, `low`, `high`: to it, with the 95 %
          interval, positive where the method is worse; `p`: adjusted; `pairs`, `unit`: how many
          seeds or draws were tested. Missing for the best itself.
        - `common`: runs that all methods have; NaN for a single method.

    Raises:
        InvalidInput: no runs.
        UnknownName: a metric that no run has.
    """
    if not records:
        raise InvalidInput.found("table", "no runs", "at least one")
    check_metrics(records, metrics or ())
    parts = []
    for task, runs in by_task(records).items():
        # runs without any number still have their rows
        shown = metrics or [column.metric for column in columns_of(runs)] or ["train_loss"]
        numbers = numbers_frame(finished(runs), reads, shown)
        # plain arrays: groups of a frame are a hundred times slower
        columns = {name: numbers[name].to_numpy() for name in numbers}
        labels = by_label(runs)
        for metric in shown:
            rows = _compare({name: c[columns["metric"] == metric] for name, c in columns.items()})
            heads = EMPTY | {
                "table": task,
                "column": column_of(metric).head,
                "task": task,
                "metric": metric,
                "own": any(name.startswith("local_") for run in runs for name in run.scalars),
            }
            for label, own in labels.items():
                names = {
                    "method": label,
                    "selected": (selected or {}).get(task, {}).get(label, ""),
                    "interrupted": len(own) - len(finished(own)),
                }
                parts.append(heads | names | rows.get(label, {}))
    frame = pd.DataFrame(parts)
    if metrics and len(metrics) == 1 and len(by_task(records)) > 1:
        frame[["table", "column"]] = frame[["column", "table"]]
    return frame


_NUMBERS = ("mean", "deviation", "difference", "low", "high", "p", "common")
EMPTY: dict[str, Any] = dict.fromkeys(_NUMBERS, math.nan) | {
    "selected": "",
    "read": "last",
    "runs": 0,
    "units": 0,
    "lost": 0,
    "left_out": 0,
    "interrupted": 0,
    "diverged": False,
    "top": False,
    "best": "",
    "pairs": 0,
    "unit": "",
}
"""Of a method without any number."""


_are_level = functools.partial(np.isclose, rtol=1e-6, atol=0)
"""Whether numbers are equal in single precision."""


def _compare(rows: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Compares the methods of one task in one metric.

    Args:
        rows: columns of `numbers_frame`.
    """
    if not rows["metric"].size:
        return {}
    metric, mode, read = (rows[name][0] for name in ("metric", "mode", "read"))
    labels = list(dict.fromkeys(rows["method"]))
    keys = list(zip(rows["draw"], rows["seed"], strict=True))
    pairs = list(dict.fromkeys(keys))
    draws = np.array([draw for draw, _ in pairs])
    at = [labels.index(label) for label in rows["method"]], [pairs.index(key) for key in keys]

    def table(column: np.ndarray) -> np.ndarray:
        filled = np.zeros((len(labels), len(pairs)), column.dtype)
        filled[at] = column
        return filled

    # shapes (methods, pairs)
    values, lost, diverged = (table(rows[name]) for name in ("value", "lost", "diverged"))
    present = table(np.ones(len(keys), bool))
    shared = present.all(0)
    used = present & shared if shared.any() else present

    # each draw of the data counts alike
    units = [units_of(values[i, used[i]], draws[used[i]])[0] for i in range(len(labels))]
    means = np.array([numbers.mean() for numbers in units])
    compared = dict[str, dict[str, Any]]()
    for i, label in enumerate(labels):
        numbers = values[i, used[i]]
        lost_count = int(lost[i, used[i]].sum())
        # the worst value of the task stands for a lost run in the tests, but it is no mean
        has_mean = lost_count < len(numbers)
        compared[label] = {
            "read": read,
            "runs": len(numbers),
            "units": len(units[i]),
            "lost": lost_count,
            "left_out": int(present[i].sum()) - len(numbers),
            "diverged": bool(diverged[i].any()),
            "mean": means[i] if has_mean else math.nan,
            "deviation": deviation_of(units[i]) if has_mean else math.nan,
            "common": int(shared.sum()) if len(labels) > 1 else math.nan,
        }

    # the best has a finite number, and not all of its runs diverged
    ranked = [
        i
        for i, label in enumerate(labels)
        if not math.isnan(compared[label]["mean"])
        and np.isfinite(values[i, used[i]]).any()
        and not diverged[i, present[i]].all()
    ]
    if not mode or metric in WATCHED or len(labels) < 2 or not shared.any() or not ranked:
        return compared
    # with the sign, smaller is better and a positive difference is worse
    sign = 1.0 if mode == "min" or "_to_" in read or read == "mean_change" else -1.0
    # of infinite means, that with most finite numbers
    infinite = (~np.isfinite(values) & used).sum(1)
    best = min(ranked, key=lambda i: (sign * means[i], infinite[i]))
    effects = {}
    for i in range(len(labels)):
        if i == best:
            continue
        own = values[i, shared]
        other = values[best, shared]
        with np.errstate(invalid="ignore"):
            # infinite numbers are close
            gaps = np.where(_are_level(own, other), 0, sign * (own - other))
        effects[i] = effect_of(*units_of(gaps, draws[shared]))
    # a single pair tests nothing, nor do equal gaps, whose spread is rounding to 32 bits: neither
    # counts in the correction
    tested = [
        i
        for i, effect in effects.items()
        if effect.units > 1 and not effect.high - effect.low <= 1e-4 * effect.mean
    ]
    adjusted = dict(zip(tested, holm([effects[i].ahead for i in tested]), strict=True))
    for i, effect in effects.items():
        compared[labels[i]] |= {
            "best": labels[best],
            "difference": effect.mean,
            "low": effect.low,
            "high": effect.high,
            "p": adjusted.get(i, math.nan),
            "pairs": effect.units,
            "unit": effect.unit,
        }
    level = _are_level(means, means[best])
    if level.all():
        return compared
    for i in ranked:
        is_level = math.isfinite(means[best]) and level[i]
        compared[labels[i]]["top"] = i == best or is_level or adjusted.get(i, 0.0) > LEVEL
    return compared
