"""Membership inference in a run directory: areas under the curve by algorithm and run."""

import math
from collections.abc import Sequence

import numpy as np

from fedax.results import Record, Sheet
from fedax.results.frame import curves_frame, read_run
from fedax.results.record import by_label, by_task
from fedax.results.tables.statistics import deviation_of

AUDITED = ", membership inference"
"""After a variant's title: the task in which it is attacked."""

ATTACKS = {"auc": "Shadow attack", "auc_calibrated": "Calibrated loss"}


def select_audits(records: Sequence[Record]) -> list[Record]:
    """Returns the runs that are audits."""
    return [record for record in records if "auc" in record.scalars]


def membership_csv(records: Sequence[Record]) -> str:
    """Returns one line for each observation of each audit as CSV."""
    frame = curves_frame(select_audits(records), list(ATTACKS))
    frame = frame.rename(columns={"method": "algorithm"})
    heads = ["task", "algorithm", "seed", "draw", "round", *ATTACKS]
    return frame[heads].to_csv(index=False, float_format="%.6g", na_rep="nan")


def membership_sheet(records: Sequence[Record]) -> Sheet:
    """Returns the table of the AUC after the last round, for the report."""
    rows = []
    for task, on_task in by_task(select_audits(records)).items():
        for label, runs in by_label(on_task).items():
            areas = {
                name: np.array([read_run(run, name, "last", None) for run in runs])
                for name in ATTACKS
            }
            seeds = [f"{run.seed}: {a:.3f}" for run, a in zip(runs, areas["auc"], strict=True)]
            rounds = max(int(run.rounds[-1]) for run in runs)
            means = [_format_mean(values) for values in areas.values()]
            rows.append([task, label, str(rounds), str(len(runs)), *means, ", ".join(seeds)])
    head = ["Task", "Algorithm", "Rounds", "Runs", *ATTACKS.values(), "Shadow attack by seed"]
    note = (
        "Area under the ROC curve after the last round; 0.5 is guessing. ± is the sample "
        "standard deviation over the runs."
    )
    return Sheet("Membership inference", head, rows, note)


def _format_mean(areas: np.ndarray) -> str:
    deviation = deviation_of(areas)
    return f"{areas.mean():.3f}" + (f" ± {deviation:.3f}" if math.isfinite(deviation) else "")
