"""The table of a grid, and which of its members stands for its algorithm."""

import csv
import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedax.experiments.spec import Experiment, Member
from fedax.report import Record, Sheet
from fedax.report.summary import COLUMNS


class Standing(NamedTuple):
    """How a member of a grid did: the mean of the selection's metric over its runs, and how many of them diverged."""

    member: Member
    runs: list[Record]
    mean: float
    diverged: int

    def order(self, higher: bool) -> tuple[bool, int, float]:
        """Smaller is better; any diverged run makes a member worse than all without."""
        value = self.mean if math.isfinite(self.mean) else (-math.inf if higher else math.inf)
        return self.diverged > 0, self.diverged, -value if higher else value


def diverged(record: Record) -> bool:
    """Whether a run counts as diverged: stopped as such, not finite, or ended above its initial training loss."""
    losses = record.metrics.get("train_loss")
    rose = losses is not None and not losses[-1] <= losses[0]
    return record.outcome.kind in ("diverged", "non-finite") or bool(rose)


def standings(experiment: Experiment, records: Sequence[Record]) -> dict[str, list[Standing]]:
    """By algorithm, its members in the order of the file, those that have run."""
    metric = experiment.grid.select if experiment.grid else "train_loss"
    found: dict[str, list[Standing]] = {}
    for member in experiment.members():
        runs = [record for record in records if record.task == experiment.name and record.label == member.label]
        if runs:
            ends = [float(run.metrics[metric][-1]) if metric in run.metrics else math.nan for run in runs]
            finite = [end for end in ends if math.isfinite(end)]
            mean = float(np.mean(finite)) if finite else math.nan
            found.setdefault(member.method, []).append(Standing(member, runs, mean, sum(map(diverged, runs))))
    return found


def selected(experiment: Experiment, records: Sequence[Record]) -> dict[str, str]:
    """By algorithm, the label of the member that the experiment's rule selects among those that have run."""
    higher = experiment.grid is not None and experiment.grid.select == "test_accuracy"
    return {
        method: min(members, key=lambda standing: standing.order(higher)).member.label
        for method, members in standings(experiment, records).items()
    }


def grid_csv(experiments: Sequence[Experiment], records: Sequence[Record]) -> str:
    """All members with all their runs as one long table; `selected` is 1 for those that the reports show."""
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    metrics = [column.metric for column in COLUMNS]
    table.writerow(["task", "algorithm", "settings", "seed", "draw", "rounds", "outcome", "diverged", *metrics, "selected"])
    for experiment in experiments:
        chosen = set(selected(experiment, records).values())
        for members in standings(experiment, records).values():
            for member, runs, _, _ in members:
                settings = " ".join(f"{key}={value}" for key, value in member.settings.items())
                for run in runs:
                    ends = [f"{run.scalars[name][-1]:.9g}" if name in run.scalars else "" for name in metrics]
                    ended = [run.seed, run.draw, int(run.rounds[-1]), str(run.outcome), int(diverged(run))]
                    table.writerow([experiment.name, member.method, settings, *ended, *ends, int(member.label in chosen)])
    return buffer.getvalue()


def grid_sheet(experiment: Experiment, records: Sequence[Record]) -> Sheet:
    """The grid for the report: one row per member."""
    rule = experiment.grid.select if experiment.grid else "train_loss"
    columns = {column.metric: column for column in COLUMNS}
    chosen, scale = set(selected(experiment, records).values()), 100 if columns[rule].percent else 1
    rows = []
    for members in standings(experiment, records).values():
        for member, runs, mean, bad in members:
            settings = ", ".join(f"{key}={value}" for key, value in member.settings.items()) or "-"
            value = f"{mean * scale:.4g}" if math.isfinite(mean) else "not finite"
            mark = "selected" if member.label in chosen else ""
            rows.append([member.method, settings, str(len(runs)), value, str(bad), mark])
    title = columns[rule].title + (" (%)" if columns[rule].percent else "")
    better = "highest" if columns[rule].percent else "lowest"
    return Sheet(
        f"Grid: {experiment.name}",
        ["Algorithm", "Settings", "Runs", title, "Diverged", ""],
        rows,
        f"Selected: the {better} final value in the mean over the runs; a member with a diverged run counts as worst.",
    )
