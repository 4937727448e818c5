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
    # single precision carries no more digits
    judged["mean"] = judged["mean"].mask(judged["lost"]).map("{:.6g}".format).astype(float)
    order = judged.sort_values(["diverged", "mean"], ascending=[True, not higher])
    judged["selected"] = judged.index.isin(order.drop_duplicates("algorithm").index)
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
    and not 0: the best value may lie beyond the list. Or that others of the list are as good.
    """
    sentences = []
    metric = str(judged["metric"][0])
    for method, members in judged.groupby("algorithm", sort=False):
        settings = members.drop(columns=list(HEADS))
        chosen = members[members["selected"]].iloc[0]
        level = settings[members["mean"] == chosen["mean"]]
        for key, value in chosen[settings.columns].items():
            tried = sorted({v for v in settings[key].dropna() if type(v) in (int, float)})
            if len(set(map(str, level[key]))) > 1:
                sentences.append(
                    f"{method}: other {key} have the same {metric}, so the first is taken."
                    + f" Models of the clients' own are judged by local_{metric}_pooled."
                    * metric.startswith("validation_")
                )
            # most ranges begin at 0, below which there is nothing to try
            elif len(tried) > 1 and value != 0 and value in (tried[0], tried[-1]):
                words = ("smallest", "smaller") if value == tried[0] else ("largest", "larger")
                sentences.append(
                    f"{method}: {key} = {value} is the {words[0]} of its list "
                    f"({', '.join(map(str, tried))}). Try {words[1]} values."
                )
    return sentences
