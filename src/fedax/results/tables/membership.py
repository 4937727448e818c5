"""Membership inference in a run directory: areas under the curve by algorithm and run."""

import csv
import io
import math
from collections.abc import Sequence

import numpy as np

from fedax.results import Record, Sheet
from fedax.results.tables.numbers import AnyRun, Line, number_of

AUDITED = ", membership inference"
"""After a variant's title: the task in which it is attacked."""

ATTACKS = {"auc": "Shadow attack", "auc_calibrated": "Calibrated loss"}


def select_audits(records: Sequence[Record]) -> list[Record]:
    """Returns the runs that are audits."""
    return [record for record in records if "auc" in record.scalars]


def membership_csv(records: Sequence[Record]) -> str:
    """Returns one line for each attack of each audit as CSV."""
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(["task", "algorithm", "seed", "draw", "round", *ATTACKS])
    for run in select_audits(records):
        for i, completed in enumerate(run.rounds):
            areas = [f"{run.scalars[name][i]:.6g}" for name in ATTACKS]
            table.writerow([run.task, run.label, run.seed, run.draw, int(completed), *areas])
    return buffer.getvalue()


def membership_sheet(records: Sequence[AnyRun]) -> Sheet:
    """Returns the table of the AUC after the last round, for the report."""
    # by task and label
    groups: dict[tuple[str, str], list[AnyRun]] = {}
    for run in records:
        if "auc" in run.scalars:
            groups.setdefault((run.task, run.label), []).append(run)
    rows = []
    for (task, label), group in groups.items():
        single = ", ".join(f"{run.seed}: {number_of(run, 'auc', 'last'):.3f}" for run in group)
        areas = [_format_mean([number_of(run, name, "last") for run in group]) for name in ATTACKS]
        rounds = max(run.final if isinstance(run, Line) else int(run.rounds[-1]) for run in group)
        rows.append([task, label, str(rounds), str(len(group)), *areas, single])
    head = ["Task", "Algorithm", "Rounds", "Runs", *ATTACKS.values(), "Shadow attack by seed"]
    note = (
        "Area under the ROC curve after the last round; 0.5 is guessing. ± is the sample "
        "standard deviation over the runs."
    )
    return Sheet("Membership inference", head, rows, note)


def _format_mean(areas: Sequence[float]) -> str:
    deviation = float(np.std(areas, ddof=1)) if len(areas) > 1 else math.nan
    return f"{np.mean(areas):.3f}" + (f" ± {deviation:.3f}" if math.isfinite(deviation) else "")
