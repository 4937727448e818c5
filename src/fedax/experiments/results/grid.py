"""The table of grids, and which of their members stand for their algorithms."""

import math

import pandas as pd

from fedax.core import InvalidInput
from fedax.experiments.results.runs import Pairs
from fedax.observe.modes import is_higher_better
from fedax.results.frame import numbers_frame
from fedax.results.page import Sheet
from fedax.results.tables.reductions import describe_reduction
from fedax.results.tables.summary import column_of

HEADS = {
    "task": "Task",
    "algorithm": "Algorithm",
    "label": "Label",
    "metric": "Metric",
    "runs": "Runs",
    "mean": "Mean",
    "diverged": "Diverged",
    "selected": "",
}
"""Columns of a grid's table, with their heads in reports; further ones are settings."""


def judge_members(pairs: Pairs, select: str, read: str) -> pd.DataFrame:
    """Judges the members of a grid that have run, in the order of the file, by the runs that
    select.

    A member with a diverged run is worse than all without, then the mean of the selecting metric
    decides. A run without a finite number counts as diverged, and in the mean as the worst of the
    grid.

    Args:
        pairs: the runs of one task.
        select: the metric that selects.
        read: how its curve becomes a number.

    Returns:
        A row for each member: `task`, `algorithm`, `label`, `metric`, `runs`, `mean` (in the
        unit of `scale_of`; NaN if no run has a number), `diverged` (how many), `selected`, and a
        column for each setting of the grid. Its attribute `best` says which mean is selected,
        `"highest"` or `"lowest"`.

    Raises:
        InvalidInput: a member none of whose runs has the metric that selects, or a metric without a
            direction.
    """
    records = [record for _, record in pairs]
    higher = is_higher_better(select, [record.modes for record in records])
    numbers = numbers_frame(records, {record.task: read for record in records}, [select])
    numbers["diverged"] |= numbers["lost"]
    # without runs that select the reported ones decide
    selects = pd.Series([pairs[i][0].selects for i in numbers["run"]], dtype=bool)
    runs = numbers[selects | ~selects.groupby(numbers["method"]).transform("any")]
    groups = runs.groupby("method").agg(
        runs=("value", "size"),
        mean=("value", "mean"),
        lost=("lost", "all"),
        diverged=("diverged", "sum"),
    )
    members = {run.label: run for run, _ in pairs}
    for label, run in members.items():
        if label not in groups.index:
            raise InvalidInput.because(
                "grid.select",
                f"no run of {label!r} of {run.task!r} has {select}, which selects",
                "Select by a metric that they have, or run again in another folder.",
            )
    rows = pd.DataFrame(
        [
            {"task": run.task, "algorithm": run.method, "label": label} | run.settings
            for label, run in members.items()
        ],
        dtype=object,  # whole numbers stay whole where some members lack a setting
    )
    judged = rows.join(groups, on="label").assign(metric=select)
    judged.attrs["best"] = "highest" if higher else "lowest"
    judged["mean"] = judged["mean"].mask(judged["lost"])
    # infinite means are the last, as missing ones are
    finite = judged["mean"].replace([-math.inf, math.inf], math.nan)
    judged["rank"] = -finite if higher else finite
    best = judged.sort_values(["diverged", "rank"]).drop_duplicates("algorithm")
    judged["selected"] = judged.index.isin(best.index)
    return judged.reindex(columns=list(dict.fromkeys([*HEADS, *rows])))


def grid_sheet(judged: pd.DataFrame, read: str) -> Sheet:
    """Returns the grid of a task for the report: one row per member, with the runs that select."""
    select = str(judged["metric"][0])
    shown = judged.drop(columns=["task", "label", "metric"]).astype(object)
    shown["mean"] = [f"{m:.4g}" if math.isfinite(m) else "not finite" for m in judged["mean"]]
    shown["selected"] = ["selected" if chosen else "" for chosen in judged["selected"]]
    shown = shown.fillna("-").rename(columns=HEADS | {"mean": column_of(select).head})
    sentences = [
        f"Selected: the {judged.attrs['best']} mean over runs with separate seeds, which are not "
        f"reported ({describe_reduction(read).lower()}); a member with a diverged run counts as "
        "worst. Algorithms of one member are shown with their own runs.",
        *edges(judged),
    ]
    if select.startswith("test"):
        sentences.append("These are test examples: on new ones the numbers would be worse.")
    return Sheet(f"Grid: {judged['task'][0]}", shown.astype(str), " ".join(sentences))


def edges(judged: pd.DataFrame) -> list[str]:
    """Returns a sentence for each selected number that is the smallest or the largest of its list,
    and not 0: the best value may lie beyond the list. Or one for each method whose members are
    alike, of which the first is taken.
    """
    sentences = []
    for method, members in judged.groupby("algorithm", sort=False):
        settings = members.drop(columns=list(HEADS))
        if len(members) > 1 and len(set(members["mean"])) == 1:
            metric = members["metric"].iloc[0]
            sentences.append(
                f"{method}: its settings do not change {metric}, so the first is taken."
            )
            continue
        for key, value in settings[members["selected"]].iloc[0].items():
            values = settings[key].dropna()
            tried = sorted({value for value in values if type(value) in (int, float)})
            # most ranges begin at 0, below which there is nothing to try
            if len(tried) < 2 or value == 0 or value not in (tried[0], tried[-1]):
                continue
            words = ("smallest", "smaller") if value == tried[0] else ("largest", "larger")
            sentences.append(
                f"{method}: {key} = {value} is the {words[0]} of its list "
                f"({', '.join(map(str, tried))}). Try {words[1]} values."
            )
    return sentences
