"""The captions of figures: what lines, bands and points are, and of which paper."""

import re
from collections.abc import Sequence
from typing import Literal

from fedax.results import Record
from fedax.results.tables.reductions import describe_reduction, is_value_reduction


def source_of(paper: str, shows: str) -> str:
    """Returns a paper in a few words, with its table or figure.

    >>> source_of(
    ...     "Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815)", "Table 7"
    ... )
    'FedBC, Table 7'
    >>> source_of("Sun, Li and Wang, Decentralized Federated Averaging, 2021", "Figure 4")
    'Sun et al., Figure 4'
    """
    match = re.search(r"(\w+): ", paper)
    return (
        f"{match[1] if match else paper.split(',')[0].removesuffix(' et al.') + ' et al.'}, {shows}"
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
    mean = f"mean over {_count_runs(runs)}"
    diamonds = " Diamonds: the paper, with its standard deviation." if printed else ""
    if kind == "paper":
        ours = (
            f"Circles: ours, {mean}, with its 95 % confidence interval; small points: single runs."
        )
        return f"{_describe_reading(read)}.{diamonds} {ours}"
    if kind == "value":
        bars = "; bars: standard deviation" if count > 1 else ""
        return (
            f"{_describe_reading(read)}, {mean}{bars}."
            if count > 1
            else f"{_describe_reading(read)} of one run."
        ) + diamonds
    if kind == "minus":
        mean = (
            "small points: single "
            f"{'draws' if len({record.draw for record in runs[0]}) > 1 else 'seeds'}; large "
            f"ones: {mean}"
        )
        return (
            f"{_describe_reading(read)} minus that of {base} on the same data; {mean}, with its "
            "95 % confidence interval."
        )
    if kind == "dots":
        sentence = "Every point is one observation of one run."
    elif count == 1:
        sentence = "One run."
    else:
        sentence = mean.capitalize() + ("; band: standard deviation." if band else ".")
    return f"{sentence} Dotted lines: the paper's values." if printed else sentence


def _count_runs(runs: Sequence[Sequence[Record]]) -> str:
    """Returns the number of runs of a mean as text."""
    sizes = sorted({len(series) for series in runs})
    draws = {len({record.draw for record in series}) for series in runs}
    # as many draws as runs: each run of a series is another draw
    unit = (
        "draws of the data"
        if draws == set(sizes) and sizes != [1]
        else "runs"
        if max(draws) > 1
        else "seeds"
    )
    return (str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}") + f" {unit}"


def _describe_reading(read: str) -> str:
    """Returns the reduction of curves as the start of a sentence."""
    return (
        describe_reduction(read)
        if is_value_reduction(read)
        else read.replace("_", " ").capitalize()
    )
