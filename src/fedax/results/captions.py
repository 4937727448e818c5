"""Captions of figures and tables: what lines, bands and points are, and which runs ended early."""

import re
from collections.abc import Sequence
from typing import Literal

from fedax.results.frame import is_lost
from fedax.results.record import Record
from fedax.results.tables.reductions import describe_reduction, is_value_reduction
from fedax.results.tables.summary import counted


def describe_source(paper: str, shows: str) -> str:
    """Returns a paper in a few words, with its table or figure.

    >>> describe_source(
    ...     "Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815)", "Table 7"
    ... )
    'FedBC, Table 7'
    >>> describe_source("Sun, Li and Wang, Decentralized Federated Averaging, 2021", "Figure 4")
    'Sun et al., Figure 4'
    """
    match = re.search(r"(\w+): ", paper)
    authors = f"{paper.split(',')[0].removesuffix(' et al.')} et al."
    return f"{match[1] if match else authors}, {shows}"


def describe_figure(
    kind: Literal["paper", "value", "curve", "dots"],
    read: str,
    runs: Sequence[Sequence[Record]],
    printed: bool = False,
    band: bool = True,
) -> str:
    """Returns what a figure shows.

    Args:
        kind: rows with the paper's numbers, means against a value, curves, or single observations.
        read: how curves become numbers, except for curves.
        runs: of each line.
        printed: whether numbers of the paper are in it.
        band: whether curves have bands.
    """
    several = max(map(len, runs)) > 1
    mean = f"mean over {_count_runs(runs)}"
    value = read.replace("_", " ").capitalize()
    if is_value_reduction(read):
        value = describe_reduction(read)
    if kind == "dots":
        sentence = "Every point is one observation of one run."
    elif kind == "paper":
        sentence = (
            f"{value}. Ours: {mean}, with its 95 % confidence interval; small points: single runs."
        )
    elif kind == "value":
        sentence = f"{value}, {mean}; bars: standard deviation."
        if not several:
            sentence = f"{value} of one run."
    elif several:
        sentence = f"{mean.capitalize()}{'; band: standard deviation' if band else ''}."
    else:
        sentence = "One run."
    if not printed:
        return sentence
    if kind in ("paper", "value"):
        return f"{sentence} Diamonds: the paper, with its standard deviation."
    return f"{sentence} Dotted lines: the paper's values."


def _count_runs(runs: Sequence[Sequence[Record]]) -> str:
    sizes = sorted({len(line) for line in runs})
    draws = {len({record.draw for record in line}) for line in runs}
    unit = "seeds"
    if draws == set(sizes) and sizes != [1]:
        # each run of a line has data of its own
        unit = "draws of the data"
    elif max(draws) > 1:
        unit = "runs"
    return "to".join(f" {size} " for size in dict.fromkeys((sizes[0], sizes[-1]))).strip() + (
        f" {unit}"
    )


def describe_early_ends(label: str, runs: Sequence[Record]) -> str:
    """Returns a sentence about the runs of one algorithm on one task that ended before the others,
    empty if there are none.
    """
    last = max(int(run.rounds[-1]) for run in runs)
    lost = [run for run in runs if is_lost(run)]
    short = [run for run in runs if not is_lost(run) and run.rounds[-1] < last]
    phrases = []
    if lost and len(runs) > 1:
        phrases.append(
            f"{len(lost)} of {len(runs)} diverged (after {_format_rounds(lost)}) and "
            f"count{'s' * (len(lost) == 1)} as the worst from there"
        )
    if short:
        phrases.append(
            f"{len(short)} of {len(runs)} ended after {_format_rounds(short)} and "
            f"keep{'s' * (len(short) == 1)} the last value"
        )
    return f"{label}: {', '.join(phrases)}." if phrases else ""


def _format_rounds(runs: Sequence[Record]) -> str:
    ends = sorted({int(run.rounds[-1]) for run in runs})
    if len(ends) == 1:
        return counted(ends[0], "round")
    return f"{ends[0]} to {ends[-1]} rounds"
