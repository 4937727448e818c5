"""A caption's sentence about runs that ended early."""

from collections.abc import Sequence

from fedax.results.frame import is_lost
from fedax.results.record import Record


def describe_early_ends(runs: Sequence[Record]) -> str:
    """Returns a sentence about runs that ended before the others, empty if none did."""
    ends = {int(run.rounds[-1]) for run in runs}
    lost = sum(map(is_lost, runs))
    if len(ends) < 2 and not lost:
        return ""
    diverged = f"; the {lost} that diverged count as the worst from there" if lost else ""
    return f"A run that ended early keeps its last value{diverged}."
