"""The table of grids, and which of their members stand for their algorithms."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment
from fedax.observe.modes import is_higher_better
from fedax.results import Record, Sheet
from fedax.results.frame import numbers_frame
from fedax.results.tables.reductions import describe_reduction
from fedax.results.tables.summary import column_of, unit_of

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


def judge_members(experiment: Experiment, records: Sequence[Record]) -> pd.DataFrame:
    """Judges the members of a grid that have run, in the order of the file, by the runs that
    select.

    A member with a diverged run is worse than all without, then the mean of the selecting metric
    decides. A run without a finite number counts as diverged, and in the mean as the worst of the
    grid.

    Returns:
        A row for each member: `task`, `algorithm`, `label`, `metric`, `runs`, `mean` (in the
        unit of `scale_of`; NaN if no run has a number), `diverged` (how many), `selected`, and a
        column for each setting of the grid.

    Raises:
        InvalidInput: a member none of whose runs has the metric that selects, or a metric without a
            direction.
    """
    select, read = experiment.select, experiment.reads
    on_task = [run for run in records if run.task == experiment.name]
    higher = is_higher_better(select, [run.modes for run in on_task])
    numbers = numbers_frame(on_task, {experiment.name: read}, [select])
    numbers["bad"] = numbers["diverged"] | numbers["lost"]
    # without selection seeds the reported runs decide
    selects = ~numbers["seed"].isin(experiment.seeds)
    runs = numbers[selects | ~selects.groupby(numbers["method"]).transform("any")]
    groups = runs.groupby("method").agg(
        runs=("value", "size"), mean=("value", "mean"), lost=("lost", "all"), bad=("bad", "sum")
    )
    found = {row["method"]: row for row in groups.reset_index().to_dict("records")}
    labels = {run.label for run in on_task}
    rows, keys = [], dict[str, None]()
    for member in experiment.members():
        keys |= dict.fromkeys(member.settings)
        if member.label not in labels:
            continue
        if member.label not in found:
            raise InvalidInput.because(
                "grid.select",
                f"no run of {member.label!r} of {experiment.name!r} has {select}, which selects",
                "Select by a metric that they have, or run again in another folder.",
            )
        own = found[member.label]
        judged = {
            "task": experiment.name,
            "algorithm": member.method,
            "label": member.label,
            "metric": select,
            "runs": own["runs"],
            "mean": math.nan if own["lost"] else own["mean"],
            "diverged": own["bad"],
            "selected": False,
        }
        rows.append(judged | member.settings)
    for method in dict.fromkeys(row["algorithm"] for row in rows):
        tried = [row for row in rows if row["algorithm"] == method]
        min(tried, key=lambda row: _rank(row["diverged"], row["mean"], higher))["selected"] = True
    return pd.DataFrame(rows, columns=[*HEADS, *keys])


def _rank(diverged: int, mean: float, higher: bool) -> tuple[int, float]:
    """Returns the rank of a member, smaller is better."""
    if not math.isfinite(mean):
        return diverged, math.inf
    return diverged, -mean if higher else mean


def judge_grids(
    experiments: Sequence[Experiment], records: Sequence[Record]
) -> list[tuple[Experiment, pd.DataFrame]]:
    """Returns one experiment with a grid for every task, on whose draw of the data members are
    selected, with its judged members.
    """
    grids: dict[str, Experiment] = {}
    for experiment in experiments:
        if experiment.grid and experiment.grid.selects:
            grids.setdefault(experiment.name, experiment)
    return [(experiment, judge_members(experiment, records)) for experiment in grids.values()]


def selected(judged: pd.DataFrame) -> dict[str, str]:
    """Returns by algorithm the label of its selected member."""
    rows = judged[judged["selected"].astype(bool)]
    return dict(zip(rows["algorithm"], rows["label"], strict=True))


def edges(experiment: Experiment, judged: pd.DataFrame) -> list[str]:
    """Returns a sentence for each selected number that is the smallest or the largest of its list,
    and not of its range.

    The best value may then lie beyond the list.
    """
    members = {member.label: member for member in experiment.members()}
    sentences = []
    for method, label in selected(judged).items():
        own = [member.settings for member in members.values() if member.method == method]
        for key, value in members[label].settings.items():
            numbers = sorted({settings[key] for settings in own if _is_number(settings.get(key))})
            # a value at the end of its declared range has nothing beyond it
            if len(numbers) < 2 or value in experiment.limits_of(members[label], key):
                continue
            ends = {numbers[0]: ("smallest", "smaller"), numbers[-1]: ("largest", "larger")}
            if value in ends:
                side, direction = ends[value]
                sentences.append(
                    f"{method}: {key} = {value} is the {side} of its list "
                    f"({', '.join(map(str, numbers))}). Try {direction} values."
                )
    return sentences


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def grid_sheet(experiment: Experiment, judged: pd.DataFrame) -> Sheet:
    """Returns the grid for the report: one row per member, with the runs that select."""
    select, read = experiment.select, experiment.reads
    shown = judged.drop(columns=["task", "label", "metric"]).astype(object)
    shown["mean"] = [f"{m:.4g}" if math.isfinite(m) else "not finite" for m in judged["mean"]]
    shown["selected"] = ["selected" if chosen else "" for chosen in judged["selected"]]
    title = f"{column_of(select).title} ({unit_of(select)})".removesuffix(" ()")
    shown = shown.fillna("-").rename(columns=HEADS | {"mean": title})
    seeds = experiment.grid.selecting(experiment.seeds) if experiment.grid else []
    # the reading in words that fit into the sentence below
    words = {"last": "final value", "best": "best value over the rounds"}
    reading = words.get(read) or describe_reduction(read).replace("Means", "mean", 1)
    highest = "highest" if is_higher_better(select) else "lowest"
    sentences = [
        f"Selected: the {highest} {reading} in the mean over the runs with the seeds "
        f"{', '.join(map(str, seeds))}, which are not reported; a member with a diverged run "
        "counts as worst. Algorithms of one member are shown with their own runs.",
        *edges(experiment, judged),
    ]
    if select.startswith("test"):
        sentences.append("These are test examples: on new ones the numbers would be worse.")
    rows = shown.astype(str).values.tolist()
    return Sheet(f"Grid: {experiment.name}", list(shown), rows, " ".join(sentences))
