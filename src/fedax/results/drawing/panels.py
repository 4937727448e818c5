"""Panels from runs: curves, means against a value, and the paper's numbers beside ours."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # imports what is asked for, and only then

from fedax.results.drawing.charts import (
    AXES,
    PUBLISHED,
    Axis,
    Kind,
    Mark,
    Panel,
    Series,
    curve,
    fit_scale,
    fit_value_axis,
    staggered,
    value_axis,
)
from fedax.results.record import Record, by_draw
from fedax.results.tables.finals import is_lost, read_runs
from fedax.results.tables.summary import is_percent, scale_of

LEVEL = 0.95
"""Confidence of the intervals of our means in dot plots."""


class Spot(NamedTuple):
    """The runs of one algorithm on one task, with the metric and the axis that they are drawn with.

    `paper` is the paper's number, `[mean]` or `[mean, deviation]`, or empty.
    """

    task: str
    method: str
    style: int
    settings: str
    runs: Sequence[Record]
    metric: str
    axis: str = "rounds"
    price: dict[str, float] | None = None
    paper: Sequence[float] = ()


class Choice(NamedTuple):
    """The drawing of axes, and the reading of a curve as a value."""

    log: bool | None = None
    log_x: bool = False
    x_title: str = ""
    y_title: str = ""
    read: str = "last"
    points: bool = False
    band: bool = True


def units(
    runs: Sequence[Record], metric: str, read: str, among: Sequence[Record] = ()
) -> np.ndarray:
    """Returns the units of statistics.

    These are the means over the seeds of each draw of the data if there are several, else the runs.

    In the unit of `scale_of`. A run that has no number, as it was stopped or is not finite, counts
    as the worst of its task, whose runs are `among`.
    """
    # of each draw, the numbers of its runs
    draws = [
        read_runs(draw_runs, metric, read, among or runs, scale_of(metric))[0]
        for draw_runs in by_draw(runs)
    ]
    return np.array([draw.mean() for draw in draws]) if len(draws) > 1 else draws[0]


def _by_task(spots: Iterable[Spot]) -> dict[str, list[Record]]:
    """Returns the runs of all spots, by task."""
    groups: dict[str, list[Record]] = {}
    for spot in spots:
        groups.setdefault(spot.task, []).extend(spot.runs)
    return groups


def interval(values: np.ndarray) -> tuple[float, float]:
    """Returns the confidence interval of a mean by Student's t; without width for a single value.

    >>> [round(end, 3) for end in interval(np.array([1.0, 2.0, 3.0]))]
    [-0.484, 4.484]
    """
    mean = float(values.mean())
    if len(values) < 2:
        return mean, mean
    reach = float(
        scipy.stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)
        * values.std(ddof=1)
        / math.sqrt(len(values))
    )
    return mean - reach, mean + reach


def curve_panel(
    title: str,
    curves: Sequence[tuple[str, Spot]],
    choice: Choice,
    marks: Sequence[Mark],
    styled: bool,
) -> Panel:
    """Draws curves with bands, or the single observations of the first run; the paper's numbers are
    lines across.

    Args:
        title: of the panel.
        curves: each with its name in the legend.
        choice: of the axes.
        marks: lines across.
        styled: whether a curve has the look of its algorithm, and a further one for every metric;
            else one by its place.
    """
    first, series, all_marks = curves[0][1], [], list(marks)
    metrics = list(dict.fromkeys(spot.metric for _, spot in curves))
    task_runs = _by_task(spot for _, spot in curves)
    computed = [
        curve(
            spot.runs[:1] if choice.points else spot.runs,
            spot.metric,
            spot.axis,
            spot.price,
            task_runs[spot.task],
        )
        for _, spot in curves
    ]
    # beyond the end of the shortest one there is no comparison at equal time
    complete = [
        lines
        for (_, spot), lines in zip(curves, computed, strict=True)
        if not all(map(is_lost, spot.runs))
    ]
    # runs that were lost do not shorten the others
    end = (
        min(float(lines[0][-1]) for lines in complete or computed)
        if first.axis == "cost"
        else math.inf
    )
    for index, ((label, spot), lines) in enumerate(zip(curves, computed, strict=True)):
        # each of shape (observations,), up to the end
        x, mean, low, high = (values[lines[0] <= end] for values in lines)
        # 8 looks further on is the same colour with another dash or marker
        style = spot.style + 8 * metrics.index(spot.metric) if styled else index
        marked = staggered(len(x), index, len(curves))
        if len(spot.runs) < 2 or choice.points or not choice.band:
            low = high = np.zeros(0)
        kind: Kind = "dots" if choice.points else "curve"
        series.append(Series(label, style, x, mean, low, high, kind, spot.settings, marked))
        if spot.paper:
            all_marks.append(Mark(f"{label}: {spot.paper[0]:g}", float(spot.paper[0]), style))
    horizontal = Axis(_axis_title(first), choice.log_x)
    return _fit_vertical(
        Panel(title, horizontal, _vertical_axis(first.metric, choice), series, all_marks),
        first.metric,
        choice,
    )


def value_panel(
    title: str,
    rows: Mapping[str, Sequence[tuple[float, Spot]]],
    choice: Choice,
    marks: Sequence[Mark],
) -> Panel:
    """Draws means against a value of the experiment, with bars of one standard deviation.

    Series stand beside each other, and the paper's numbers beside the series that they belong to.
    """
    values = sorted({value for points in rows.values() for value, _ in points})
    spots = [spot for points in rows.values() for _, spot in points]
    # each series, and each one's published numbers, has a slot of equal width at every value
    slots = len(rows) + sum(any(spot.paper for _, spot in points) for points in rows.values())
    layout = _Slots(values, slots, choice.log_x)
    series: list[Series] = []
    for position, (label, points) in enumerate(rows.items()):
        ordered = sorted(points, key=lambda point: point[0])
        if printed := [(value, spot) for value, spot in ordered if spot.paper]:
            series.append(_published_series(printed, layout.positions(printed, len(series))))
        # a panel of several metrics tells series apart by their position
        style = ordered[0][1].style if len({spot.metric for spot in spots}) == 1 else position
        x = layout.positions(ordered, len(series))
        series.append(_mean_series(label, style, ordered, x, choice.read, _by_task(spots)))
    metric = spots[0].metric
    horizontal = Axis(choice.x_title, choice.log_x, ticks=_ticks(values, choice.log_x))
    return _fit_vertical(
        Panel(title, horizontal, _vertical_axis(metric, choice), series, marks), metric, choice
    )


class _Slots(NamedTuple):
    """Horizontal positions of series that stand beside each other at the same values."""

    values: Sequence[float]
    count: int
    log: bool

    def positions(self, points: Sequence[tuple[float, Spot]], slot: int) -> np.ndarray:
        """Returns the positions of a series' points in a slot, shape (points,)."""
        gaps = np.diff(np.log(self.values) if self.log else self.values)
        # of a single value: panels beside this one may have others that are near to it
        alone = 1.0 if self.log or not self.values[0] else 0.1 * abs(self.values[0])
        # all slots together fill 0.3 of the smallest gap
        width = 0.3 * (float(gaps.min()) if len(self.values) > 1 else alone)
        # symmetric about the value: the middle slot lies on it
        shift = width * ((slot + 0.5) / self.count - 0.5) if self.count > 1 else 0.0
        # on a logarithmic axis a shift is a factor
        return np.array(
            [value * math.exp(shift) if self.log else value + shift for value, _ in points]
        )


def _published_series(points: Sequence[tuple[float, Spot]], x: np.ndarray) -> Series:
    """Draws the paper's numbers, with their standard deviations where it gives them."""
    mean = np.array([float(spot.paper[0]) for _, spot in points])
    spread = np.array([float(spot.paper[1]) if len(spot.paper) > 1 else 0.0 for _, spot in points])
    return Series(PUBLISHED, points[0][1].style, x, mean, mean - spread, mean + spread, "published")


def _mean_series(
    label: str,
    style: int,
    points: Sequence[tuple[float, Spot]],
    x: np.ndarray,
    read: str,
    among: Mapping[str, Sequence[Record]],
) -> Series:
    """Draws means over runs with one standard deviation; `among` are all runs of each task."""
    numbers = [units(spot.runs, spot.metric, read, among[spot.task]) for _, spot in points]
    mean = np.array([values.mean() for values in numbers])
    spread = np.array([values.std(ddof=1) if len(values) > 1 else 0.0 for values in numbers])
    settings = {spot.settings for _, spot in points}
    common_settings = settings.pop() if len(settings) == 1 else ""
    return Series(
        label,
        style,
        x,
        mean,
        mean - spread,
        mean + spread,
        "points",
        common_settings,
        tuple(range(len(x))),
    )


def with_common_values(panels: Sequence[Panel], columns: int) -> list[Panel]:
    """Returns panels against a value with one horizontal axis: the values of all of them, and fewer
    ticks where panels are narrow.
    """
    if len({(panel.x.title, panel.x.log) for panel in panels}) > 1:
        return list(panels)
    points = np.concatenate([series.x for panel in panels for series in panel.series])
    values = sorted({value for panel in panels for value, _ in panel.x.ticks})
    x = panels[0].x._replace(ticks=_ticks(values, panels[0].x.log, 0.06 if columns < 5 else 0.3))
    # the margin that charts have by default, 0.05 of the axis
    ends = np.log(points) if x.log else points
    margin = 0.05 * float(np.ptp(ends))
    if margin:
        low, high = ends.min() - margin, ends.max() + margin
        ends = np.exp([low, high]) if x.log else np.array([low, high])
        x = x._replace(low=float(ends[0]), high=float(ends[1]))
    return [dataclasses.replace(panel, x=x) for panel in panels]


def _ticks(values: Sequence[float], log: bool, gap: float = 0.06) -> tuple[tuple[float, str], ...]:
    """Returns ticks at the values, without those nearer than this part of the axis to the one
    before.
    """
    positions = np.log(values) if log else np.array(values)
    ticks, last = [], -math.inf
    for value, position in zip(values, positions, strict=True):
        if position - last >= gap * (positions[-1] - positions[0]):
            last = position
            ticks.append((value, f"{value:g}"))
    return tuple(ticks)


def difference_panel(
    title: str,
    rows: Mapping[str, Sequence[tuple[float, Spot]]],
    base: Mapping[str, Sequence[Record]],
    name: str,
    choice: Choice,
) -> Panel:
    """Draws differences to another method's runs with the same data and seed against a value.

    Numbers of the value stand evenly spaced.

    Args:
        title: of the panel.
        rows: by label, values with their runs.
        base: the other method's runs, by task.
        name: of the other method.
        choice: of the axes.
    """
    values = sorted({value for points in rows.values() for value, _ in points})
    series: list[Series] = []
    # by value, pairs of which one has no number
    lost = dict.fromkeys(values, 0)
    for position, (label, points) in enumerate(rows.items()):
        # series share 0.6 of the distance between two values
        shift = 0.6 * ((position + 0.5) / len(rows) - 0.5)
        style = points[0][1].style if len(points) == 1 else position
        dots, means = [], []
        for value, spot in sorted(points, key=lambda point: point[0]):
            gaps = paired_units(spot.runs, base.get(spot.task, ()), spot.metric, choice.read)
            finite = gaps[np.isfinite(gaps)]
            lost[value] += len(gaps) - len(finite)
            center = values.index(value) + shift
            # single units to the right of their mean
            dots += [(center + 0.08, gap) for gap in finite]
            # a mean without the lost pairs would be too good, so there is none
            if len(finite) == len(gaps) > 0:
                means.append((center - 0.08, float(gaps.mean()), *interval(gaps)))
        # reshaped, because an empty list has one axis only
        x, y = np.array(dots).reshape(-1, 2).T
        series.append(Series("single draws", style, x, y, kind="runs"))
        x, y, low, high = np.array(means).reshape(-1, 4).T
        all_points = tuple(range(len(x)))
        series.append(Series(label, style, x, y, low, high, "points", marked=all_points))
    ticks = tuple(
        (float(i), f"{v:g}" + (f"\n{lost[v]} diverged" if lost[v] else ""))
        for i, v in enumerate(values)
    )
    metric = next(iter(rows.values()))[0][1].metric
    vertical = value_axis(metric, log=False)
    vertical = vertical._replace(title=choice.y_title or f"{vertical.title} minus {name}'s")
    # values are numbered, so their places are 0, 1, 2, ...
    horizontal = Axis(choice.x_title, low=-0.6, high=len(values) - 0.4, ticks=ticks)
    return Panel(title, horizontal, vertical, series, [Mark(name, 0.0)])


def paired_units(
    runs: Sequence[Record], base: Sequence[Record], metric: str, read: str
) -> np.ndarray:
    """Computes differences to another method's runs, see `units`, on the draws of the data and with
    the seeds that both have.

    Where a run of either has no number, because it diverged, the difference is NaN.
    """
    # by draw and seed, the run to subtract
    base_runs = {(run.draw, run.seed): run for run in base}
    paired_runs = [run for run in runs if (run.draw, run.seed) in base_runs]
    if not paired_runs:
        return np.zeros(0)
    paired_base = [base_runs[run.draw, run.seed] for run in paired_runs]
    gaps = units(paired_runs, metric, read) - units(paired_base, metric, read)
    lost = [
        is_lost(run) or is_lost(base_run)
        for run, base_run in zip(paired_runs, paired_base, strict=True)
    ]
    draws = [run.draw for run in paired_runs]
    # in the order in which `units` returns them
    groups = list(dict.fromkeys(draws)) if len(set(draws)) > 1 else range(len(paired_runs))
    # the unit of each run: its draw, or the run itself if there is one draw
    owners = draws if len(set(draws)) > 1 else range(len(paired_runs))
    without = {owner for owner, is_lost_pair in zip(owners, lost, strict=True) if is_lost_pair}
    return np.where([group in without for group in groups], np.nan, gaps)


def dot_panel(title: str, spots: Sequence[Spot], choice: Choice) -> Panel:
    """Draws a row for every algorithm.

    The paper's number with its deviation stands above ours with the interval and the single runs.
    """
    # rows are numbered downwards, the first one on top
    rows = -np.arange(len(spots), dtype=float)
    among = _by_task(spots)
    numbers = [units(spot.runs, spot.metric, choice.read, among[spot.task]) for spot in spots]
    finite = [values[np.isfinite(values)] for values in numbers]
    # a mean without the runs that diverged would be too good: the row then has single runs only
    complete = [
        len(finite_values) == len(row_values)
        for finite_values, row_values in zip(finite, numbers, strict=True)
    ]
    means = np.array(
        [
            finite_values.mean() if is_complete else math.nan
            for finite_values, is_complete in zip(finite, complete, strict=True)
        ]
    )
    ends = [
        interval(finite_values) if is_complete else (math.nan, math.nan)
        for finite_values, is_complete in zip(finite, complete, strict=True)
    ]
    low, high = (np.array(side) for side in zip(*ends, strict=True))
    paper = np.array([spot.paper[0] if spot.paper else math.nan for spot in spots], float)
    spread = np.array([spot.paper[1] if len(spot.paper) > 1 else 0.0 for spot in spots], float)
    # single runs stand at the height of their row
    heights = np.concatenate(
        [np.full(len(finite_values), row) for finite_values, row in zip(finite, rows, strict=True)]
    )
    series = [
        Series(
            "paper, ± standard deviation",
            1,
            paper,
            rows + 0.17,
            paper - spread,
            paper + spread,
            "paper",
        ),
        Series("ours, 95 % interval of the mean", 0, means, rows - 0.17, low, high, "ours"),
        Series("single runs", 0, np.concatenate(finite), heights - 0.17, kind="runs"),
    ]
    # may add a series of arrows for means beyond the axis
    horizontal = cut_axis(value_axis(spots[0].metric, bool(choice.log)), series)
    ticks = tuple((float(row), _row_name(spot)) for row, spot in zip(rows, spots, strict=True))
    return Panel(
        title, horizontal, Axis("", low=float(rows[-1]) - 0.6, high=0.6, ticks=ticks), series
    )


def _row_name(spot: Spot) -> str:
    """Returns the lines beside a row: the method, its settings, and how many runs diverged."""
    lost = sum(run.diverged for run in spot.runs)
    extra = [spot.settings] * bool(spot.settings) + [f"{lost} of {len(spot.runs)} diverged"] * bool(
        lost
    )
    return "\n".join([spot.method, *extra])


def cut_axis(axis: Axis, series: list[Series]) -> Axis:
    """Returns the axis below rows of the papers' numbers and ours, cut where ours are far off.

    Numbers beyond the cut are added to the series. A logarithmic axis becomes linear if it cannot
    show all of them.
    """
    if axis.log:
        drawn = np.concatenate([side for each in series for side in (each.x, each.low, each.high)])
        axis = axis._replace(log=bool((drawn[np.isfinite(drawn)] > 0).all()))
    # shapes (rows,): one number of the paper and one mean for each row of the panel
    paper = np.concatenate([each.x for each in series if each.kind == "paper"])
    ours = [each for each in series if each.kind == "ours"]
    means, rows = (np.concatenate([getattr(each, side) for each in ours]) for side in ("x", "y"))
    if (bounds := _find_cut(paper, means)) is None:
        return axis

    # first the range of all that is near: the paper's numbers with deviations, and our means
    far = (means < bounds[0]) | (means > bounds[1])
    sides = [(each.low, each.high) for each in series if each.kind == "paper"]
    inside = np.concatenate([*(side for pair in sides for side in pair), means[~far]])
    first, last = float(np.nanmin(inside)), float(np.nanmax(inside))

    # then our intervals, as far as a quarter of that range: those of few runs may be far wider
    reach = 0.25 * (last - first)
    low, high = (
        np.append(np.concatenate([getattr(each, side) for each in ours])[~far], inside)
        for side in ("low", "high")
    )
    edges = np.clip([np.nanmin(low), np.nanmax(high)], first - reach, last + reach)
    edges += np.array([-0.12, 0.04]) * (edges[1] - edges[0])

    # means that came into sight are no longer beyond the axis, and get room to its ends
    far = (means < edges[0]) | (means > edges[1])
    visible, gap = np.append(means[~far], [first, last]), 0.03 * (edges[1] - edges[0])
    edges = np.array(
        [min(edges[0], np.nanmin(visible) - gap), max(edges[1], np.nanmax(visible) + gap)]
    )
    margin = 0.01 * (edges[1] - edges[0])  # a point on the very edge may be cut off with it
    arrow_positions = np.where(means[far] < edges[0], edges[0] + margin, edges[1] - margin)
    texts = tuple(f"{mean:.3g}" for mean in means[far])
    if far.any():
        series.append(
            Series(
                "ours, beyond the axis", 0, arrow_positions, rows[far], kind="beyond", texts=texts
            )
        )
    log = axis.log and bool(edges[0] > 0)
    return axis._replace(log=log, low=float(edges[0]), high=float(edges[1]))


def _find_cut(paper: np.ndarray, means: np.ndarray) -> tuple[float, float] | None:
    """Returns the ends at which an axis is cut, so that means far from all of the paper's numbers
    do not press these together.

    None if all are near, or the paper has no number for any of them.
    """
    if np.isnan(paper).all():
        return None
    low, high = float(np.nanmin(paper)), float(np.nanmax(paper))
    # one and a half times the paper's range on both sides, at least 0.15 of its largest number
    reach = max(1.5 * (high - low), 0.15 * abs(high))
    return (
        (low - reach, high + reach)
        if ((means < low - reach) | (means > high + reach)).any()
        else None
    )


def _axis_title(spot: Spot) -> str:
    if spot.axis != "cost":
        return AXES[spot.axis]
    price = {"round": 1.0, "step": 1.0, "gigabit": 0.0} | (spot.price or {})
    words = {"round": "a round", "step": "a local step", "gigabit": "a gigabit"}
    return "time: " + ", ".join(f"{words[key]} {value:g}" for key, value in price.items() if value)


def _vertical_axis(metric: str, choice: Choice) -> Axis:
    axis = value_axis(metric, choice.log)
    return axis._replace(title=choice.y_title or axis.title)


def _fit_vertical(panel: Panel, metric: str, choice: Choice) -> Panel:
    """Returns a panel with the scale and the ends of its vertical axis that fit what is drawn."""
    # below its minimum an objective is by rounding only: such a gap is below what can be measured
    keep = choice.log is True or metric == "objective_gap"
    return fit_value_axis(fit_scale(panel, keep), is_percent(metric))
