"""The final table: mean and deviation over runs, for the terminal, the report and Markdown
alike.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedax.core.directions import Mode, is_percent
from fedax.results.record import Record
from fedax.results.tables.reductions import is_value_reduction


class Column(NamedTuple):
    """A metric as tables and charts show it; `brief` ones also where there is little room."""

    metric: str
    title: str
    chart: bool = False
    brief: bool = False

    @property
    def head(self) -> str:
        """The title with the unit.

        >>> COLUMNS["test_accuracy"].head, column_of("client_accuracy_variance").head
        ('Test accuracy (%)', 'Accuracy variance over clients (squared points)')
        """
        unit = {100.0: "%", 1e4: "squared points"}.get(scale_of(self.metric))
        return f"{self.title} ({unit})" if unit else self.title

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


def quantity_of(metric: str, read: str) -> str:
    """Names what a difference of two numbers is in, with its unit.

    >>> quantity_of("test_accuracy", "best"), quantity_of("train_loss", "last")
    ('points', 'train loss')
    >>> quantity_of("node_accuracy_mean", "best"), quantity_of("objective_gap", "rounds_to_0.01")
    ('points of node accuracy mean', 'rounds until 0.01')
    >>> quantity_of("test_accuracy", "mean_change")
    'points from one observation to the next'
    """
    name = metric.replace("_", " ")
    if read == "mean_change":
        return f"{quantity_of(metric, 'last')} from one observation to the next"
    if not is_value_reduction(read):
        quantity, _, level = read.partition("_to_")
        return f"{quantity} until {level}" if level else f"{name}, last over half"
    if scale_of(metric) == 1.0:
        return name
    unit = "points" if scale_of(metric) == 100.0 else "squared points"
    return unit if metric == "test_accuracy" else f"{unit} of {name}"


_SHOWN = (
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
    Column("unseen_accuracy", "New clients", chart=True),
    Column("unseen_accuracy_adapted", "New clients, adapted", chart=True),
    Column("client_accuracy_mean", "Mean over clients"),
    Column("client_accuracy_worst_tenth", "Worst tenth", brief=True),
    Column("local_accuracy_mean", "Mean of the clients' own models", chart=True, brief=True),
    Column("node_accuracy_mean", "Mean of the nodes' models"),
    Column("auc", "AUC, shadow attack", chart=True, brief=True),
    Column("auc_calibrated", "AUC, calibrated loss", chart=True),
    Column("drawn_accuracy_gap", "Accuracy gap in a cohort", chart=True),
    Column("weight_gap", "Weight gap in a cohort", chart=True),
    Column("dissimilarity", "Dissimilarity B", chart=True),
    Column("epsilon", "Epsilon", chart=True, brief=True),
)
COLUMNS = {column.metric: column for column in _SHOWN}
"""The metrics that reports show, in order."""

MOST_OWN = 6
"""Columns of metrics of the user's own, at most."""

_BY_CLIENT = re.compile("(client|local)_(validation_|.*(?<!_mean)$)")
"""Scores by client without a column, as such accuracies have none."""

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
    "node_accuracy_mean": "the nodes' own models on the central test set, averaged",
    "auc": "membership inference by shadow models: 0.5 is guessing",
    "auc_calibrated": "membership inference by calibrated losses: 0.5 is guessing",
    "dissimilarity": "of the clients' gradients: 1 if all agree; grows where the loss is nearly "
    "stationary",
    "epsilon": "of differential privacy, spent by the end of a run at the delta of its settings",
}
"""The meaning of a metric, as tables show it where somebody points at its title."""

_TITLES = {
    "client_accuracy_variance": "Accuracy variance over clients",
    "drawn_accuracy_smallest": "Accuracy on the smallest client of the round",
    "drawn_accuracy_largest": "Accuracy on the largest client of the round",
    "weight_smallest": "Weight of the smallest client of the round",
    "weight_largest": "Weight of the largest client of the round",
}
"""Of metrics that are in no table."""


def column_of(metric: str) -> Column:
    """Returns a metric as charts show it, also if tables do not.

    >>> column_of("gradient_diversity").title, column_of("client_accuracy_smallest").title
    ('Gradient diversity', 'Client accuracy, client with fewest examples')
    """
    if metric in COLUMNS:
        return COLUMNS[metric]
    title = metric.replace("_", " ").capitalize()
    if metric.startswith(("client_", "local_")):
        # "smallest" would read as the lowest accuracy: it is that of the smallest client
        title = title.replace(" smallest", ", client with fewest examples")
        title = title.replace(" largest", ", client with most examples")
    return Column(metric, _TITLES.get(metric, title))


def columns_of(records: Sequence[Record]) -> list[Column]:
    """Returns the columns for which any of the runs has values.

    After the built-in ones come the first `MOST_OWN` others whose direction the runs state: scores
    of the user's own tasks. Of scores by client that is the mean on test examples.
    """
    stated: dict[str, set[Mode | None]] = {}
    for record in records:
        for metric, values in record.scalars.items():
            if not np.isnan(values).all():
                stated.setdefault(metric, {None}).add((record.modes or {}).get(metric))
    # one that means different things in different runs has no place in a table
    others = [
        name
        for name, modes in stated.items()
        if name not in COLUMNS and len(modes) == 2 and not _BY_CLIENT.match(name)
    ]
    return [column for metric, column in COLUMNS.items() if metric in stated] + [
        # scores on test examples stand where there is little room too
        column_of(metric)._replace(chart=True, brief=metric.startswith(("test_", "local_")))
        for metric in others[:MOST_OWN]
    ]


def charts_of(records: Sequence[Record]) -> list[str]:
    """Returns the metrics of the columns that have a chart, or of all if none has."""
    columns = columns_of(records)
    charts = [column for column in columns if column.chart]
    return [column.metric for column in charts or columns]


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
