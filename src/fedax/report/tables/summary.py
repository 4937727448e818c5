"""The final table: mean and deviation over runs, for the terminal, the report and Markdown
alike.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedax.core.directions import Mode
from fedax.observe.modes import mode_of
from fedax.report.record import Record, by_label
from fedax.report.record import is_percent as is_percent
from fedax.report.tables.finals import read_runs


class Column(NamedTuple):
    """A metric as tables and charts show it; `brief` ones also where there is little room."""

    metric: str
    title: str
    chart: bool = False
    brief: bool = False

    @property
    def percent(self) -> bool:
        return is_percent(self.metric)

    @property
    def logarithmic(self) -> bool:
        """Whether a logarithmic axis shows more."""
        return self.metric.endswith("loss") or self.metric == "objective_gap"


def scale_of(metric: str) -> float:
    """Returns the factor of a metric in tables: accuracies are in percent, their variances in
    squared points.

    >>> scale_of("test_accuracy"), scale_of("client_accuracy_variance"), scale_of("train_loss")
    (100.0, 10000.0, 1.0)
    """
    return 100.0 if is_percent(metric) else 1e4 if metric.endswith("accuracy_variance") else 1.0


COLUMNS = (
    Column("train_loss", "Train loss", chart=True, brief=True),
    Column("objective_gap", "Objective above its minimum", chart=True, brief=True),
    Column("validation_loss", "Validation loss", chart=True),
    Column("validation_accuracy", "Validation accuracy", chart=True),
    Column("test_loss", "Test loss"),
    Column("test_accuracy", "Test accuracy", chart=True, brief=True),
    Column("validation_auc", "Validation AUC"),
    Column("validation_f1", "Validation F1"),
    Column("test_auc", "Test AUC"),
    Column("test_f1", "Test F1"),
    Column("test_calibration_error", "Test calibration error"),
    Column("held_back_accuracy", "New clients", chart=True),
    Column("held_back_accuracy_adapted", "New clients, adapted", chart=True),
    Column("client_accuracy_mean", "Mean over clients"),
    Column("client_accuracy_worst_tenth", "Worst tenth", brief=True),
    Column("local_accuracy_mean", "Mean of the clients' own models"),
    Column("node_accuracy_mean", "Mean of the nodes' models"),
    Column("auc", "AUC, shadow attack", chart=True, brief=True),
    Column("auc_calibrated", "AUC, calibrated loss", chart=True),
    Column("drawn_accuracy_gap", "Accuracy gap in a cohort", chart=True),
    Column("weight_gap", "Weight gap in a cohort", chart=True),
    Column("dissimilarity", "Dissimilarity B", chart=True),
)
"""The metrics that reports show, in order."""

ABOUT = {
    "train_loss": "mean loss of the global model over all clients' training examples; every "
    "example counts alike",
    "objective_gap": "the objective that is minimised, less its known minimum",
    "test_loss": "mean loss of the global model over all test examples",
    "test_accuracy": "share of all test examples that the global model gets right; every "
    "example counts alike",
    "client_accuracy_mean": "accuracy on each client's own test examples, averaged with equal "
    "weights of clients: far below the "
    "test accuracy if many small clients are served worse than a few large ones",
    "client_accuracy_worst_tenth": "mean over the tenth of the clients with the lowest accuracy",
    "local_accuracy_mean": "each client's own model on its own test examples, averaged with "
    "equal weights of clients",
    "node_accuracy_mean": "the nodes' own models on the global test set, averaged",
    "auc": "membership inference by shadow models: 0.5 is guessing",
    "auc_calibrated": "membership inference by calibrated losses: 0.5 is guessing",
    "dissimilarity": "of the clients' gradients: 1 if all agree; grows where the loss is nearly "
    "stationary",
}
"""The meaning of a metric, as tables show it where somebody points at its title."""


class Row(NamedTuple):
    """One algorithm of a task: what its curves read as, by metric as (mean, deviation), and how its
    runs ended.

    The deviation is the sample standard deviation over the runs, NaN for a single one. A run
    without a number, because it diverged or is not finite, counts as the worst of its task, and
    `lost` has how many of them there are, by metric. The mean is NaN if no run has a number.
    """

    label: str
    runs: int
    rounds: int
    values: dict[str, tuple[float, float]]
    outcome: str
    ok: bool
    lost: dict[str, int] = {}  # noqa: RUF012 (never written)
    modes: dict[str, Mode | None] = {}  # noqa: RUF012 (never written)


def columns_of(records: Sequence[Record]) -> list[Column]:
    """Returns the columns for which any of the runs has values."""
    return [
        column for column in COLUMNS if any(column.metric in record.scalars for record in records)
    ]


def summarize(records: Sequence[Record], read: str = "last") -> list[Row]:
    """Returns one row per algorithm, for the runs of one task; `read` says how curves become
    numbers, see `read_curve`.
    """
    rows = []
    for label, runs in by_label(records).items():
        values, lost = dict[str, tuple[float, float]](), dict[str, int]()
        for metric in (column.metric for column in columns_of(runs)):
            measured = [run for run in runs if metric in run.scalars]
            # `records` are all runs of the task: the worst value is taken over these
            numbers, lost[metric] = read_runs(measured, metric, read, records)
            # if all runs are lost there is no number, only the worst initial value
            if lost[metric] == len(measured):
                numbers = np.full(len(measured), math.nan)
            with np.errstate(invalid="ignore"):
                values[metric] = (
                    float(numbers.mean()),
                    float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan,
                )
        rounds, ok = (
            max(int(run.rounds[-1]) for run in runs),
            all(run.outcome.ok and not run.diverged for run in runs),
        )
        modes: dict[str, Mode | None] = {
            metric: mode_of(metric, [run.modes for run in records]) for metric in values
        }
        rows.append(
            Row(label, len(runs), rounds, values, _summarize_outcomes(runs), ok, lost, modes)
        )
    return rows


def format_row_value(row: Row, column: Column) -> str:
    """Returns a final value of a row as text, with how many of its runs count as the worst of their
    task.
    """
    text, lost = shown(column, row.values.get(column.metric)), row.lost.get(column.metric, 0)
    return f"{text} ({lost} of {row.runs} as the worst)" if 0 < lost < row.runs else text


def shown(column: Column, value: tuple[float, float] | None) -> str:
    """Returns a final value as text, such as `0.412 ± 0.013` or `81.3 ± 0.4 %`."""
    if value is None or not math.isfinite(value[0]):
        return "-" if value is None else "not finite"
    scale = 100 if column.percent else 1
    mean, deviation = value[0] * scale, value[1] * scale
    digits = ".1f" if column.percent else _number_format(mean)
    text = f"{mean:{digits}}"
    if math.isfinite(deviation):
        text += f" ± {deviation:{digits}}"
    return text + (" %" if column.percent else "")


def _number_format(mean: float) -> str:
    """Formats with three decimals, or three significant digits where that is small or large."""
    return ".3f" if mean == 0 or 0.01 <= abs(mean) < 1000 else ".3g"


def best(column: Column, rows: Sequence[Row]) -> set[str]:
    """Returns the labels whose shown mean is best in a column: the highest accuracy, the lowest
    loss.

    None for metrics that are only watched, or have no direction. A mean that is not finite is worse
    than all others.
    """
    rows = [row for row in rows if column.metric in row.values]
    mode = next((row.modes.get(column.metric) for row in rows), None)
    if mode is None or column.metric in ("dissimilarity", "weight_gap"):
        return set()
    means = {row.label: row.values[column.metric][0] for row in rows}
    # rounded as shown, so that equal texts are marked alike
    finite = {
        label: float(f"{mean:{_number_format(mean)}}")
        for label, mean in means.items()
        if math.isfinite(mean)
    }
    # nothing is best if all are equal, unless one was lost
    if not finite or (len(finite) == len(means) and len(set(finite.values())) < 2):
        return set()
    top = (max if mode == "max" else min)(finite.values())
    return {label for label, mean in finite.items() if mean == top}


def _summarize_outcomes(runs: Sequence[Record]) -> str:
    """Returns `ok`, `diverged at round 12`, or counts such as `2 ok, 1 diverged`."""
    if len(runs) == 1:
        return runs[0].ending
    kinds = ["diverged" if run.diverged else run.outcome.kind for run in runs]
    counts = {
        kind: kinds.count(kind)
        for kind in ("ok", "stopped", "diverged", "interrupted")
        if kind in kinds
    }
    return (
        "ok"
        if list(counts) == ["ok"]
        else ", ".join(f"{count} {kind}" for kind, count in counts.items())
    )


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
