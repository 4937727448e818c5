"""The table of a grid, and which of its members stands for its algorithm."""

import csv
import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedax.core import InvalidInput
from fedax.experiments.config.experiment import Experiment, Member
from fedax.observe.modes import is_higher_better
from fedax.results import Record, Sheet
from fedax.results.record import column_name
from fedax.results.tables.finals import read_runs
from fedax.results.tables.reductions import describe_reduction
from fedax.results.tables.summary import column_of, columns_of


class Standing(NamedTuple):
    """The standing of a member of a grid: the mean of the selection's metric over its runs, and how
    many of them diverged.

    A run without a finite number counts as diverged, and in the mean as the worst of the grid; NaN
    if no run has one.
    """

    member: Member
    runs: list[Record]
    mean: float
    diverged: int

    def order(self, higher: bool) -> tuple[bool, int, float]:
        """Returns the rank of a member, smaller is better. One with a diverged run is worse than
        all without.
        """
        value = self.mean if math.isfinite(self.mean) else (-math.inf if higher else math.inf)
        return self.diverged > 0, self.diverged, -value if higher else value


def standings(experiment: Experiment, records: Sequence[Record]) -> dict[str, list[Standing]]:
    """Judges the members of each algorithm that have run, in the order of the file, by the runs
    that select.

    Raises:
        InvalidInput: a member none of whose runs has the metric that selects.
    """
    select, on_task = (
        experiment.select,
        [record for record in records if record.task == experiment.name],
    )
    by_method: dict[str, list[Standing]] = {}
    for member in experiment.members():
        member_runs = [record for record in on_task if record.label == member.label]
        # a directory from before there were seeds for the selection has only those that it reports
        runs = [
            record for record in member_runs if record.seed not in experiment.seeds
        ] or member_runs
        if runs:
            measured = [run for run in runs if select in run.scalars]
            if not measured:
                raise InvalidInput.because(
                    "grid.select",
                    f"no run of {member.label!r} of {experiment.name!r} has {select}, which "
                    "selects",
                    "Select by a metric that they have, or run again in another folder.",
                )
            final_values = [read_runs([run], select, experiment.reads, on_task) for run in measured]
            # a run can be lost without having diverged, if its number is not finite
            lost = {
                id(run) for run, (_, count) in zip(measured, final_values, strict=True) if count
            }
            mean = (
                float(np.mean([value for value, _ in final_values]))
                if len(lost) < len(measured)
                else math.nan
            )
            diverged = sum(run.diverged or id(run) in lost for run in runs)
            by_method.setdefault(member.method, []).append(Standing(member, runs, mean, diverged))
    return by_method


def select_members(experiment: Experiment, records: Sequence[Record]) -> dict[str, str]:
    """Selects for each algorithm a member by the experiment's rule, among those that have run;
    returns labels.
    """
    higher = is_higher_better(experiment.select, [record.modes for record in records])
    return {
        method: min(members, key=lambda standing: standing.order(higher)).member.label
        for method, members in standings(experiment, records).items()
    }


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
    selecting = [
        experiment for experiment in experiments if experiment.grid and experiment.grid.selects
    ]
    # of experiments with one name the first counts: later entries replace earlier ones in a dict
    return list({experiment.name: experiment for experiment in reversed(selecting)}.values())[::-1]


def edges(experiment: Experiment, records: Sequence[Record]) -> list[str]:
    """Returns a sentence for each selected number that is the smallest or the largest of its list,
    and not of its range.

    The best value may then lie beyond the list.
    """
    members = {member.label: member for member in experiment.members()}
    sentences = []
    for method, label in select_members(experiment, records).items():
        member = members[label]
        for key, value in member.settings.items():
            # the values of the key among the members of the algorithm
            values = {
                other.settings.get(key) for other in members.values() if other.method == method
            }
            numbers = sorted(
                other
                for other in values
                if isinstance(other, int | float) and not isinstance(other, bool)
            )
            # a value at the end of its declared range has nothing beyond it
            if (
                len(numbers) < 2
                or value not in (numbers[0], numbers[-1])
                or value in experiment.limits_of(member, key)
            ):
                continue
            side, direction = (
                ("smallest", "smaller") if value == numbers[0] else ("largest", "larger")
            )
            listed = ", ".join(map(str, numbers))
            sentences.append(
                f"{method}: {key} = {value} is the {side} of its list ({listed}). "
                f"Try {direction} values."
            )
    return sentences


def grid_csv(
    experiments: Sequence[Experiment], records: Sequence[Record], units: bool = True
) -> str:
    """Returns all members with all their runs as one long table; `selected` is 1 for the members
    that the reports show.

    `purpose` is `selection` for the runs by which a member is selected, else `report`.
    Heads name the units of metrics, unless the table is kept among earlier ones without.
    """
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    metrics = [column.metric for column in columns_of(records)]
    ended = ["rounds", "outcome", "diverged"]
    table.writerow(
        [
            "task",
            "algorithm",
            "settings",
            "purpose",
            "seed",
            "draw",
            *ended,
            *(map(column_name, metrics) if units else metrics),
            "selected",
        ]
    )
    for experiment in experiments:
        selected_labels = set(select_members(experiment, records).values())
        for member in experiment.members():
            settings = _format_settings(member)
            # all runs of the member: those that select and those that are reported
            for run in records:
                if (run.task, run.label) != (experiment.name, member.label):
                    continue
                final_values = [
                    f"{run.scalars[name][-1]:.9g}" if name in run.scalars else ""
                    for name in metrics
                ]
                purpose = "report" if run.seed in experiment.seeds else "selection"
                outcome_cells = [int(run.rounds[-1]), str(run.outcome), int(run.diverged)]
                run_cells = [
                    experiment.name,
                    member.method,
                    # without commas, so that the cell needs no quotes
                    settings.replace(", ", " "),
                    purpose,
                    run.seed,
                    run.draw,
                ]
                table.writerow(
                    [
                        *run_cells,
                        *outcome_cells,
                        *final_values,
                        int(member.label in selected_labels),
                    ]
                )
    return buffer.getvalue()


def grid_sheet(experiment: Experiment, records: Sequence[Record]) -> Sheet:
    """Returns the grid for the report: one row per member, with the runs that select."""
    column = column_of(experiment.select)
    selection_seeds = experiment.grid.selecting(experiment.seeds) if experiment.grid else []
    selected_labels, scale = (
        set(select_members(experiment, records).values()),
        100 if column.percent else 1,
    )
    rows = []
    for members in standings(experiment, records).values():
        for member, runs, mean, diverged in members:
            value = f"{mean * scale:.4g}" if math.isfinite(mean) else "not finite"
            mark = "selected" if member.label in selected_labels else ""
            rows.append(
                [
                    member.method,
                    _format_settings(member) or "-",
                    str(len(runs)),
                    value,
                    str(diverged),
                    mark,
                ]
            )
    title = column.title + (" (%)" if column.percent else "")
    on_test, seeds = (
        column.metric.startswith("test"),
        ", ".join(str(seed) for seed in selection_seeds),
    )
    # the reading in words that fit into the sentence below
    read = {"last": "final value", "best": "best value over the rounds"}.get(experiment.reads)
    read = read or describe_reduction(experiment.reads).replace("Means", "mean", 1)
    highest = "highest" if is_higher_better(column.metric) else "lowest"
    return Sheet(
        f"Grid: {experiment.name}",
        ["Algorithm", "Settings", "Runs", title, "Diverged", ""],
        rows,
        f"Selected: the {highest} {read} in the mean over the runs with the seeds"
        f" {seeds}, which are not reported; a member with a diverged run counts as worst. "
        "Algorithms of one member are shown with"
        " their own runs."
        + "".join(f" {sentence}" for sentence in edges(experiment, records))
        + (" These are test examples: on new ones the numbers would be worse." if on_test else ""),
    )


def _format_settings(member: Member) -> str:
    return ", ".join(f"{key}={value}" for key, value in member.settings.items())
