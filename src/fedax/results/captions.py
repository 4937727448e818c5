"""Captions of figures and tables: what lines, bands and points are, and what became of runs that
ended early.
"""

from collections.abc import Sequence
from typing import Literal

from fedax.results.frame import is_lost
from fedax.results.record import Record
from fedax.results.tables.reductions import describe_reduction, is_value_reduction
from fedax.results.tables.summary import counted


def describe_figure(
    kind: Literal["paper", "value", "curve"],
    read: str,
    runs: Sequence[Sequence[Record]],
    printed: bool = False,
    band: bool = True,
) -> str:
    """Returns what a figure shows.

    Args:
        kind: rows with the paper's numbers, means against a value, or curves.
        read: how curves become numbers, except for curves.
        runs: of each line.
        printed: whether numbers of the paper are in it.
        band: whether curves have bands.
    """
    most = max(map(len, runs))
    mean = f"mean over {counted(most, 'run')}" if most > 1 else "one run"
    if kind == "curve":
        bands = "; band: standard deviation" if band and most > 1 else ""
        numbers = " Dotted lines: the paper's values." if printed else ""
        return f"{mean.capitalize()}{bands}.{numbers}"
    value = read.replace("_", " ").capitalize()
    if is_value_reduction(read):
        value = describe_reduction(read)
    numbers = " Diamonds: the paper, with its standard deviation." if printed else ""
    return f"{value}, {mean}; bars: standard deviation.{numbers}"


def describe_early_ends(runs: Sequence[Record]) -> str:
    """Returns a sentence about runs that ended before the others, empty if none did."""
    ends = {int(run.rounds[-1]) for run in runs}
    lost = sum(map(is_lost, runs))
    if len(ends) < 2 and not lost:
        return ""
    diverged = f"; the {lost} that diverged count as the worst from there" if lost else ""
    return f"A run that ended early keeps its last value{diverged}."
