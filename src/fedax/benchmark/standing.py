"""Where methods stand: costs against the reference, tested over the tasks of a family, and areas.

Results are rows of a table, see `fedax.benchmark.run.run_method`. Archived and new methods are
judged alike, by `compare_methods`.
"""
# pandas states columns and groups of a frame as unions that nothing narrows
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special

from fedax.benchmark.run import COSTS
from fedax.benchmark.task import QUALITY, BenchTask
from fedax.observe.modes import is_higher_better
from fedax.results.tables.statistics import LEVEL, holm

ARCHIVE = Path(__file__).parent / "archive.csv"
"""Results of the built-in methods."""
RUN = ["draw", "study", "seed"]
"""Columns that tell the runs of a method on a task apart."""
LIMIT = 4.0
"""Factor between costs from which on it does not matter how large it is."""
FLIPS = 100_000
DRAWS = 10_000
SEED = 0
"""Draws of the test's signs, of the bootstrap over tasks, and their seed."""
POWER = 0.8
"""Chance with which a detectable gain is found."""

Runs = Float[np.ndarray, "methods runs"]


def first_results(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Returns tables of results as one; of a method and task with several keys the first counts."""
    cell = ["task", "method"]
    found = pd.concat(tables, ignore_index=True).drop_duplicates([*cell, *RUN])
    return found.loc[found["key"] == found.groupby(cell)["key"].transform("first")]


def compare_methods(results: pd.DataFrame, tasks: Sequence[BenchTask]) -> pd.DataFrame:
    """Compares the methods that have run on some tasks with the reference of these.

    Costs are compared by their logarithms, run by run with equal seeds: the gain is the logarithm
    of the reference's cost over the method's. Factors beyond `LIMIT`, such as those of runs that
    never arrive, count as `LIMIT`. The gain of a quality is the difference, positive where the
    method is better, and a run that diverged counts as the worst of its task.

    Where there are several draws of the data or studies of the tuning, a pair is the mean gain over
    the seeds of one, and a task's cost the median over them of the medians over their seeds.

    One test is over all tasks: under its hypothesis every difference could as well have the other
    sign. Holm corrects for the number of methods.

    Args:
        results: of all methods; those that lack one of the tasks are left out.
        tasks: of one family.

    Returns:
        A row for each method, the reference among them, in the order of their areas by rounds; no
        row without the reference or with it alone. Columns are `everyone`, `tasks` (how many),
        `edges` (on how many of them a selected value is at the edge of its range), and by quality,
        or by cost that is known of all runs, such as `gain_rounds`: `gain`, `low`, `high` (mean
        over the tasks, with its 95 % interval over the pairs), `p` (adjusted), `detectable` (the
        gain that the test finds with a chance of `POWER`); of costs also `area`, `area_low`,
        `area_high` (its interval over the tasks), and `round` (the cost of a round over that of the
        reference's, NaN where no run arrives).
    """
    reference = tasks[0].reference.shown()
    names = [task.name for task in tasks]
    own = results[results["task"].isin(names)]
    counts = own.groupby("method")["task"].nunique()
    methods = counts.index[counts == len(tasks)]
    if not {reference} < set(methods):
        return pd.DataFrame()
    own = own[own["method"].isin(methods)]
    everyone = own.groupby("method")["everyone"].any()
    frame = pd.DataFrame({"everyone": everyone, "tasks": len(tasks)}, index=methods)
    at_edge = own.dropna(subset="edges").groupby("method")["task"].nunique()
    frame["edges"] = at_edge.reindex(methods, fill_value=0)
    others = frame.index != reference
    medians: dict[str, pd.DataFrame] = {}
    # hours are not known without devices
    measures = [name for name in COSTS if own[name].notna().all()]
    measures += [name for name in QUALITY if all(name in task.target.quality for task in tasks)]
    wide = own.pivot(index="method", columns=["task", *RUN], values=measures)
    # runs that not all methods have are left out
    runs = wide["rounds"].dropna(axis=1).columns
    for measure in measures:
        table = wide[measure][runs]
        gains = []
        for task in tasks:
            values = table[task.name]
            if measure in COSTS:
                gain = _cost_gains(values, reference)
            else:
                gain = _quality_gains(values, reference, task.target.quality[measure])
            gains.append(_by_draw(gain, "mean").to_numpy()[others])
        tested = flip_signs(gains)
        for name in tested:
            frame.loc[others, f"{name}_{measure}"] = tested[name].to_numpy()
        if measure not in COSTS:
            continue
        costs = medians[measure] = pd.DataFrame(
            {name: _by_draw(table[name], "median").median(axis=1) for name in names}
        )
        ends = areas(costs.to_numpy())
        for name, end in zip(("area", "area_low", "area_high"), ends, strict=True):
            frame[f"{name}_{measure}"] = end
        prices = costs / medians["rounds"]
        frame[f"round_{measure}"] = (prices / prices.loc[reference]).median(axis=1)
    return frame.sort_values("area_rounds", ascending=False, kind="stable")


def areas(
    costs: Float[np.ndarray, "methods tasks"],
) -> Float[np.ndarray, "mean_low_high methods"]:
    """Returns the areas under the performance profiles from 1 to `LIMIT`, over their width, in
    [0, 1], and the ends of their 95 % bootstrap intervals over tasks.

    The profile at r is the share of tasks on which a method costs at most r times as much as the
    best one. Source: Dolan and Moré, Benchmarking optimization software with performance profiles
    (2002), eq. (2.1). A task with ratio r adds the part of the interval that lies above r.

    Args:
        costs: above 0, infinite where the target is not reached.

    >>> areas(np.array([[10.0, np.inf], [25.0, 5.0]]))[0].tolist()
    [0.5, 0.75]
    """
    with np.errstate(invalid="ignore"):
        found = costs / costs.min(0)
    # where no method arrives, infinite over infinite
    parts = np.nan_to_num(np.clip((LIMIT - found) / (LIMIT - 1), 0.0, 1.0))
    count = parts.shape[1]
    # all methods see the same draws; shape (methods, draws)
    drawn = np.random.default_rng(SEED).integers(0, count, (DRAWS, count))
    tail = 50 * LEVEL
    ends = np.percentile(parts[:, drawn].mean(2), [tail, 100 - tail], axis=1)
    return np.stack([parts.mean(1), *ends])


def _by_draw(table: pd.DataFrame, reduce: str) -> pd.DataFrame:
    """Returns the mean or median over the seeds of each draw and study, which are the units of
    chance; of one draw and study these are the seeds.
    """
    units = table.T.groupby(level=RUN[:2])
    return units.agg(reduce).T if units.ngroups > 1 else table


def _cost_gains(costs: pd.DataFrame, reference: str) -> pd.DataFrame:
    logs = np.log(costs)
    most = math.log(LIMIT)
    # level if both never arrive
    return (logs.loc[reference] - logs).fillna(0.0).clip(-most, most)


def _quality_gains(values: pd.DataFrame, reference: str, metric: str) -> pd.DataFrame:
    signed = values if is_higher_better(metric) else -values
    known = signed.fillna(signed.min(axis=None))
    return known - known.loc[reference]


def flip_signs(gains: Sequence[Runs]) -> pd.DataFrame:
    """Tests by sign flips whether the mean over tasks of each method's gains is 0, with Holm's
    correction over the methods.

    Args:
        gains: of each task.

    Returns:
        A row for each method with the columns `gain`, `low`, `high`, `p` and `detectable` of
        `compare_methods`.

    >>> flip_signs([np.full((1, 8), 0.5), np.full((1, 8), 0.7)]).round(3).iloc[0].tolist()
    [0.6, 0.6, 0.6, 0.0, 0.077]
    """
    mean = np.mean([one.mean(1) for one in gains], axis=0)
    # the spread of seeds within the tasks, which are fixed
    errors = [one.var(1, ddof=1) / one.shape[1] for one in gains]
    error = np.sqrt(np.sum(errors, axis=0)) / len(gains)
    reach = error * special.stdtrit(sum(one.shape[1] - 1 for one in gains), 1 - LEVEL / 2)
    # each task has one weight; shape (methods, pairs)
    pairs = np.concatenate([one / (one.shape[1] * len(gains)) for one in gains], axis=1)
    # all methods see the same signs
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], (FLIPS, pairs.shape[1]))
    # sums in another order differ in the last bits
    is_larger = np.abs(signs @ pairs.T) >= np.abs(mean) * (1 - 1e-9)
    p = (1 + is_larger.sum(0)) / (1 + FLIPS)
    # as of a t-test at Holm's first level, which is close to the power of sign flips
    spread = np.median(np.concatenate(gains, axis=1).std(1, ddof=1))
    n = pairs.shape[1]
    level = LEVEL / len(mean)
    found = (special.stdtrit(n - 1, 1 - level / 2) + special.ndtri(POWER)) * spread / math.sqrt(n)
    # no p-value is smaller than that of equal signs
    found = found if 2.0 ** (1 - n) <= level else math.inf
    p = holm(p.tolist())
    columns = {"gain": mean, "low": mean - reach, "high": mean + reach, "p": p, "detectable": found}
    return pd.DataFrame(columns)


def verdict_of(row: Mapping[str, float], measure: str) -> str:
    """Returns `better`, `worse`, or nothing if a method is not distinguishable.

    Args:
        row: of `compare_methods`.
        measure: a cost or quality.
    """
    if not row.get(f"p_{measure}", 1.0) <= LEVEL:
        return ""
    return "better" if row[f"gain_{measure}"] > 0 else "worse"


def gain_text(row: Mapping[str, float], measure: str) -> str:
    """Returns a gain with its interval, of costs in percent; nothing for the reference.

    Args:
        row, measure: as for `verdict_of`.
    """
    gains = [row.get(f"{name}_{measure}", math.nan) for name in ("gain", "low", "high")]
    if math.isnan(gains[0]):
        return ""
    if measure in COSTS:
        gain, low, high = (f"{100 * math.expm1(value):+.0f}" for value in gains)
        return f"{gain} % [{low}, {high}]"
    gain, low, high = (f"{value:+.3f}" for value in gains)
    return f"{gain} [{low}, {high}]"
