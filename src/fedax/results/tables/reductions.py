"""Reductions of a curve to one number, for tables, grids, comparisons with a paper and claims."""

import math
import re
from typing import Annotated

import numpy as np
from pydantic import AfterValidator

from fedax.core import InvalidInput

VALUES = "last, best, best_observed, mean_last_<k>_rounds"
ALLOWED = (
    f"{VALUES}, rounds_to_<x>, gigabits_to_<x>, hours_to_<x>, joules_to_<x>, "
    "last_over_half, mean_change"
)
_COUNT = r"[1-9]\d{0,8}"
_NUMBER = r"-?\d+\.?\d*(?:e-?\d+)?"
_PATTERN = re.compile(
    "last|best|best_observed|last_over_half|mean_change"
    rf"|mean_last_(?P<rounds>{_COUNT})_rounds"
    rf"|(?:rounds|gigabits|hours|joules)_to_(?P<value>{_NUMBER})"
)


def parse_reduction(read: str) -> re.Match[str]:
    """Parses the name of a reduction.

    Raises:
        InvalidInput: an unknown name.
    """
    match = _PATTERN.fullmatch(read)
    if match is None:
        raise InvalidInput.of("read", read, ALLOWED)
    return match


def is_value_reduction(read: str) -> bool:
    """Returns whether the number is a value of the metric, so that it suits all metrics of a table.

    >>> [
    ...     is_value_reduction(read)
    ...     for read in ("last", "best", "mean_last_10_rounds", "rounds_to_0.5", "last_over_half")
    ... ]
    [True, True, True, False, False]
    """
    match = _PATTERN.fullmatch(read)
    return (
        match is not None
        and match["value"] is None
        and read not in ("last_over_half", "mean_change")
    )


def _check(read: str) -> str:
    parse_reduction(read)
    return read


def _check_value(read: str) -> str:
    if not is_value_reduction(read):
        raise InvalidInput.of("read", read, VALUES)
    return read


Reduction = Annotated[str, AfterValidator(_check)]
ValueReduction = Annotated[str, AfterValidator(_check_value)]
"""Of files: names of reductions, and of those whose number is a value of the metric."""


def describe_reduction(read: str) -> str:
    """Returns the name of a reduced number for captions of tables.

    >>> describe_reduction("last"), describe_reduction("mean_last_10_rounds")
    ('Final values', 'Means of the last 10 rounds')
    """
    match = parse_reduction(read)
    if match["rounds"]:
        return f"Means of the last {match['rounds']} rounds"
    if match["value"]:
        return f"{read.partition('_')[0].capitalize()} until {match['value']}"
    return {
        "last": "Final values",
        "best": "Best values over the rounds",
        "best_observed": "Best values over the observed rounds, of broken runs too",
        "last_over_half": "Final values over those at half the rounds",
        "mean_change": "Mean changes between observations in the second half",
    }[read]


def read_curve(curve: np.ndarray, rounds: np.ndarray, read: str, higher: bool) -> float:
    """Reduces a curve to one number.

    Args:
        curve: values of a scalar metric, shape (observations,); the first one is of the initial
            model. Where that is NaN, later ones that are NaN are left out too.
        rounds: rounds completed at each, same shape; for reductions in another unit what was spent
            so far.
        read: `last`, `best`, `best_observed` (the best value that a run observed, also if it broke
            later), `mean_last_<k>_rounds` (mean over the observations of the last k
            rounds, those after the round `rounds[-1] - k`, without the initial model),
            `rounds_to_<x>` (the first observed round at which the metric is as good as x, infinity
            if never), `gigabits_to_<x>` (the traffic until then, 10^9 bits, both directions, all
            participants), `hours_to_<x>` and `joules_to_<x>` (the same on the virtual clock),
            `last_over_half` (the last value over the one at half the rounds: a curve in 1/t halves,
            a linearly convergent one falls faster, one at its floor stays), or `mean_change` (the
            mean absolute change from one observation to the next in the second half of the rounds:
            how far a curve is from smooth; compare only curves that are observed equally often).
        higher: whether more is better.

    >>> read_curve(
    ...     np.array([0.0, 50.0, 80.0, 70.0]), np.array([0, 2, 4, 6]), "mean_last_4_rounds", True
    ... )
    75.0
    >>> read_curve(np.array([0.0, 50.0, 80.0, 70.0]), np.arange(4), "rounds_to_60", True)
    2.0
    >>> read_curve(np.array([0.0, 50.0, 80.0, 70.0, 75.0]), np.arange(5), "mean_change", True)
    7.5
    """
    match = parse_reduction(read)
    if np.isnan(curve[0]):
        # a metric of cohorts, which has no value where nobody worked, as before the first round
        seen = ~np.isnan(curve)
        curve = curve[seen]
        rounds = rounds[seen]
    if read == "best_observed":
        curve = curve[np.isfinite(curve)]
    if not len(curve):
        return math.nan
    if match["rounds"]:
        # the initial model counts only if nothing else was observed
        late = curve[rounds > max(rounds[-1] - int(match["rounds"]), 0)]
        return float(late.mean() if len(late) else curve[0])
    if match["value"]:
        # NaN is never as good as the level
        reached = curve >= float(match["value"]) if higher else curve <= float(match["value"])
        return float(rounds[np.argmax(reached)]) if reached.any() else math.inf
    if read == "mean_change":
        # observations in the second half of the rounds
        second = curve[rounds >= rounds[-1] / 2]
        return float(np.abs(np.diff(second)).mean()) if len(second) > 1 else math.nan
    if read == "last_over_half":
        # `argmax` of booleans finds the first observation from half of the rounds on
        return float(curve[-1] / curve[np.argmax(rounds >= rounds[-1] / 2)])
    if read == "last":
        return float(curve[-1])
    return float(curve.max() if higher else curve.min())
