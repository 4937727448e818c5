"""Directions of metrics: whether more or less of a score is better.

Each is stated where the score is defined.
"""

import math
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fedax.errors import InvalidInput

Mode: TypeAlias = Literal["min", "max"]
"""`"max"` where more is better, `"min"` where less is."""

SCORES: dict[str, Mode] = {"loss": "min", "accuracy": "max"}
"""Directions that every task has; a task states those of its other scores."""


def find_mode(
    field: str,
    name: str,
    requested: Mode | None,
    stated: Mapping[str, Mode],
    hint: str,
) -> Mode:
    """Returns the direction of a metric: the one stated where it is defined, otherwise the
    requested one.

    Raises:
        InvalidInput: neither is known, or they contradict each other.
    """
    stated_mode = stated.get(name)
    if stated_mode is None and requested is None:
        allowed = f"metrics of which is stated whether more of {name} is better"
        raise InvalidInput.of(field, name, allowed, hint)
    if stated_mode is not None and requested is not None and stated_mode != requested:
        raise InvalidInput.of(
            f"{field}, mode", requested, f'"{stated_mode}", as {name} states where it is defined'
        )
    return requested or stated_mode or "min"


def is_better(value: float, than: float | None, mode: Mode) -> bool:
    """Returns whether a value is better than another.

    None is worse than every finite value, and no other value is better.
    """
    if not math.isfinite(value):
        return False
    return than is None or (value > than if mode == "max" else value < than)


def worst_of(values: ArrayLike, mode: Mode) -> float:
    """Returns the worst of the finite values, or the infinity that is worse than all values if
    there is none.
    """
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return -math.inf if mode == "max" else math.inf
    return float(finite.min() if mode == "max" else finite.max())


RUN_COLUMNS = (
    "task",
    "method",
    "seed",
    "draw",
    "run",
    "lost",
    "round",
    "seconds",
    "bits",
    "hours",
    "joules",
    "gradients",
)
"""Columns of data frames of runs, whose names no metric has."""

_PERCENT = "accuracy(_(mean|pooled|worst_tenth|smallest|largest|gap|min|max|adapted))?$"
"""Accuracies, and the numbers that observers make of the accuracies of several clients."""


def is_percent(metric: str) -> bool:
    """Returns whether a metric is a fraction: accuracies and their gaps. Variances are in squared
    fractions.

    >>> is_percent("test_accuracy"), is_percent("client_accuracy_mean"), is_percent("accuracy_loss")
    (True, True, False)
    """
    return re.search(_PERCENT, metric) is not None


def column_name(metric: str) -> str:
    """Returns the head of a metric's column in files that keep fractions.

    >>> (
    ...     column_name("test_accuracy"),
    ...     column_name("client_accuracy_variance"),
    ...     column_name("train_loss"),
    ... )
    ('test_accuracy (fraction)', 'client_accuracy_variance (squared fraction)', 'train_loss')
    """
    if is_percent(metric):
        return f"{metric} (fraction)"
    if metric.endswith("accuracy_variance"):
        return f"{metric} (squared fraction)"
    return metric
