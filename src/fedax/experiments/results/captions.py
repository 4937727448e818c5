"""The captions of figures: what lines, bands and points are, and of which paper."""

import re
from collections.abc import Sequence
from typing import Literal

from fedax.report import Record
from fedax.report.tables.reductions import describe_reduction, is_value_reduction


def source_of(paper: str, shows: str) -> str:
    """Returns a paper in a few words, with its table or figure.

    >>> source_of(
    ...     "Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815)", "Table 7"
    ... )
    'FedBC, Table 7'
    >>> source_of("Sun, Li and Wang, Decentralized Federated Averaging, 2021", "Figure 4")
    'Sun et al., Figure 4'
    """
    named = re.search(r"(\w+): ", paper)
    return (
        f"{named[1] if named else paper.split(',')[0].removesuffix(' et al.') + ' et al.'}, {shows}"
    )


def note_of(
    kind: Literal["paper", "value", "minus", "curve", "dots"],
    read: str,
    runs: Sequence[Sequence[Record]],
    printed: bool = False,
    band: bool = True,
    base: str = "",
) -> str:
    """Returns what a figure shows.

    Args:
        kind: rows with the paper's numbers, means or differences against a value, curves, or single
            observations.
        read: how curves become numbers, except for curves.
        runs: of each series.
        printed: whether numbers of the paper are in it.
        band: whether curves have bands.
        base: the method whose runs are subtracted, for differences.
    """
    # the largest series decides whether the caption speaks of a mean
    count = max(map(len, runs))
    mean = f"mean over {_counted(runs)}"
    diamonds = " Diamonds: the paper, with its standard deviation." if printed else ""
    if kind == "paper":
        ours = (
            f"Circles: ours, {mean}, with its 95 % confidence interval; small points: single runs."
        )
        return f"{_read_as(read)}.{diamonds} {ours}"
    if kind == "value":
        bars = "; bars: standard deviation" if count > 1 else ""
        return (
            f"{_read_as(read)}, {mean}{bars}." if count > 1 else f"{_read_as(read)} of one run."
        ) + diamonds
    if kind == "minus":
        mean = (
            "small points: single "
            f"{'draws' if len({record.draw for record in runs[0]}) > 1 else 'seeds'}; large "
            f"ones: {mean}"
        )
        return (
            f"{_read_as(read)} minus that of {base} on the same data; {mean}, with its 95 % "
            "confidence interval."
        )
    if kind == "dots":
        first = "Every point is one observation of one run."
    elif count == 1:
        first = "One run."
    else:
        first = mean.capitalize() + ("; band: standard deviation." if band else ".")
    return f"{first} Dotted lines: the paper's values." if printed else first


def _counted(runs: Sequence[Sequence[Record]]) -> str:
    """Returns the number of runs of a mean as text."""
    sizes = sorted({len(own) for own in runs})
    draws = {len({record.draw for record in own}) for own in runs}
    # as many draws as runs: each run of a series is another draw
    word = (
        "draws of the data"
        if draws == set(sizes) and sizes != [1]
        else "runs"
        if max(draws) > 1
        else "seeds"
    )
    return (str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}") + f" {word}"


def _read_as(read: str) -> str:
    """Returns the reduction of curves as the start of a sentence."""
    return (
        describe_reduction(read)
        if is_value_reduction(read)
        else read.replace("_", " ").capitalize()
    )
