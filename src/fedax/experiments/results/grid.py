"""The table of a grid, and which of its members stands for its algorithm."""

import math
from collections.abc import Sequence

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
    higher = is_higher_better(select, [run.modes for run in records])
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
    rows = []
    for member in experiment.members():
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
    keys = dict.fromkeys(key for member in experiment.members() for key in member.settings)
    return pd.DataFrame(rows, columns=[*HEADS, *keys])


def _rank(diverged: int, mean: float, higher: bool) -> tuple[int, float]:
    """Returns the rank of a member, smaller is better."""
    if not math.isfinite(mean):
        return diverged, math.inf
    return diverged, -mean if higher else mean


def select_members(experiment: Experiment, records: Sequence[Record]) -> dict[str, str]:
    """Selects for each algorithm a member by the experiment's rule, among those that have run;
    returns labels.
    """
    judged = judge_members(experiment, records)
    rows = judged.to_dict("records")
    return {row["algorithm"]: row["label"] for row in rows if row["selected"]}


def selections(
    experiments: Sequence[Experiment], records: Sequence[Record]
) -> dict[str, dict[str, str]]:
    """Returns the selections by task; experiments on other draws of a task's data select together
    with it.
    """
    return {
        experiment.name: select_members(experiment, records) for experiment in grids_of(experiments)
    }


def grids_of(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Returns one experiment with a grid for every task, on whose draw of the data members are
    selected.
    """
    grids: dict[str, Experiment] = {}
    for experiment in experiments:
        if experiment.grid and experiment.grid.selects:
            grids.setdefault(experiment.name, experiment)
    return list(grids.values())


def edges(experiment: Experiment, records: Sequence[Record]) -> list[str]:
    """Returns a sentence for each selected number that is the smallest or the largest of its list,
    and not of its range.

    The best value may then lie beyond the list.
    """
    members = {member.label: member for member in experiment.members()}
    sentences = []
    for method, label in select_members(experiment, records).items():
        own = [member for member in members.values() if member.method == method]
        for key, selected in members[label].settings.items():
            tried = {member.settings.get(key) for member in own}
            numbers = sorted(
                value
                for value in tried
                if isinstance(value, int | float) and not isinstance(value, bool)
            )
            # a value at the end of its declared range has nothing beyond it
            if len(numbers) < 2 or selected in experiment.limits_of(members[label], key):
                continue
            ends = {numbers[0]: ("smallest", "smaller"), numbers[-1]: ("largest", "larger")}
            if selected in ends:
                side, direction = ends[selected]
                sentences.append(
                    f"{method}: {key} = {selected} is the {side} of its list "
                    f"({', '.join(map(str, numbers))}). Try {direction} values."
                )
    return sentences


def grid_csv(experiments: Sequence[Experiment], records: Sequence[Record]) -> str:
    """Returns the members of all grids as one table, see `judge_members`."""
    judged = pd.concat([judge_members(experiment, records) for experiment in experiments])
    return judged.astype({"selected": int}).to_csv(index=False, float_format="%.9g")


def grid_sheet(experiment: Experiment, records: Sequence[Record]) -> Sheet:
    """Returns the grid for the report: one row per member, with the runs that select."""
    select, read = experiment.select, experiment.reads
    judged = judge_members(experiment, records).drop(columns=["task", "label", "metric"])
    judged["mean"] = [f"{m:.4g}" if math.isfinite(m) else "not finite" for m in judged["mean"]]
    judged["selected"] = ["selected" if chosen else "" for chosen in judged["selected"]]
    title = f"{column_of(select).title} ({unit_of(select)})".removesuffix(" ()")
    shown = judged.astype(object).fillna("-").rename(columns=HEADS | {"mean": title})
    seeds = experiment.grid.selecting(experiment.seeds) if experiment.grid else []
    # the reading in words that fit into the sentence below
    words = {"last": "final value", "best": "best value over the rounds"}
    reading = words.get(read) or describe_reduction(read).replace("Means", "mean", 1)
    highest = "highest" if is_higher_better(select) else "lowest"
    sentences = [
        f"Selected: the {highest} {reading} in the mean over the runs with the seeds "
        f"{', '.join(map(str, seeds))}, which are not reported; a member with a diverged run "
        "counts as worst. Algorithms of one member are shown with their own runs.",
        *edges(experiment, records),
    ]
    if select.startswith("test"):
        sentences.append("These are test examples: on new ones the numbers would be worse.")
    rows = shown.astype(str).values.tolist()
    return Sheet(f"Grid: {experiment.name}", list(shown), rows, " ".join(sentences))
