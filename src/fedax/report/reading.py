"""The ways in which a curve becomes a number: the same for tables, grids, comparisons with a paper and claims."""

import math
import re

import numpy as np

from fedax.core import InvalidInput


def reading(read: str) -> re.Match[str]:
    """The parts of a way to read curves.

    Raises:
        InvalidInput: it is none.
    """
    number = r"-?\d+\.?\d*(?:e-?\d+)?"
    match = re.fullmatch(rf"last|best|last_over_half|mean_last_([1-9]\d{{0,8}})|(?:rounds|gigabits)_to_({number})", read)
    if match is None:
        allowed = "last, best, mean_last_<k>, rounds_to_<x>, gigabits_to_<x>, last_over_half"
        raise InvalidInput.of("read", read, allowed)
    return match


def reads_values(read: str) -> bool:
    """Whether the number is a value of the metric itself, so that all metrics of a table can be read in this way.

    >>> [reads_values(read) for read in ("last", "best", "mean_last_10", "rounds_to_0.5", "last_over_half")]
    [True, True, True, False, False]
    """
    return re.fullmatch(r"last|best|mean_last_[1-9]\d{0,8}", read) is not None


def in_words(read: str) -> str:
    """The numbers of a table, as its caption calls them.

    >>> in_words("last"), in_words("mean_last_10")
    ('Final values', 'Means of the last 10 observations')
    """
    mean = reading(read)[1]
    return f"Means of the last {mean} observations" if mean else "Best values" if read == "best" else "Final values"


def read_curve(curve: np.ndarray, rounds: np.ndarray, read: str, higher: bool) -> float:
    """One number of a curve.

    Args:
        curve: values of a scalar metric, shape (observations,); the first one is of the initial model.
        rounds: rounds completed at each, same shape; for `gigabits_to_<x>` the traffic so far instead.
        read: `last`, `best`, `mean_last_<k>` (of the last k observations, without the first of all), `rounds_to_<x>` (the first
            observed round at which the metric is as good as x, infinity if never), `gigabits_to_<x>` (the traffic until then, 10^9
            bits, both directions, all participants), or `last_over_half` (the last value over the
            one at half the rounds: a curve in 1/t halves, a linearly convergent one falls faster, one at its floor stays).
        higher: whether more is better.

    >>> read_curve(np.array([0.0, 50.0, 80.0, 70.0]), np.arange(4), "mean_last_2", True)
    75.0
    >>> read_curve(np.array([0.0, 50.0, 80.0, 70.0]), np.arange(4), "rounds_to_60", True)
    2.0
    """
    match = reading(read)
    if match[1]:
        return float(np.mean(curve[1:][-int(match[1]) :] if len(curve) > 1 else curve))
    if match[2]:
        reached = curve >= float(match[2]) if higher else curve <= float(match[2])
        return float(rounds[np.argmax(reached)]) if reached.any() else math.inf
    if read == "last_over_half":
        return float(curve[-1] / curve[np.argmax(rounds >= rounds[-1] / 2)])
    return float(curve[-1]) if read == "last" else float(np.nanmax(curve) if higher else np.nanmin(curve))
