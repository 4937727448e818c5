"""Charts as data: panels with axes, series and marks. Matplotlib draws them for papers, Plotly on
the page.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fedax.core import InvalidInput
from fedax.results.record import Record
from fedax.results.tables.means import band, curves_of, mean_position
from fedax.results.tables.summary import column_of as column_of
from fedax.results.tables.summary import scale_of

AXES = {
    "rounds": "communication rounds",
    "bits": "bits sent, both directions",
    "gradients": "minibatch gradients of a client",
    "seconds": "seconds",
    "time": "hours on the virtual clock",
    "energy": "energy of all clients, J",
    "cost": "time, of communication and computation",
}
"""Horizontal axes of curves."""

Kind = Literal["curve", "points", "published", "dots", "paper", "ours", "runs", "beyond"]
PUBLISHED = "the paper, ± standard deviation"
"""The label of the paper's numbers in panels of ours against a value."""
_MARKERS = 6  # of a curve
_EARLY = 0.1  # the part of an axis in which a rising accuracy does not stretch the chart


class Axis(NamedTuple):
    """One axis; without limits they follow from the data. `ticks` are the only ones, with their
    texts.
    """

    title: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[tuple[float, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve or row of points.

    Attributes:
        label: its name in the legend; series of equal names in several panels are one entry.
        style: number of its colour, dash and marker.
        x, y: the points; accuracies in percent, NaN where there is none.
        low, high: ends of an interval, of y; of x for `paper` and `ours`. May be empty.
        kind: `curve` (line with a band), `points` (a line through means with bars), `published`
            (the paper's values against those of the experiment, with bars), `dots` (single
            observations), or, across, the `paper` value, `ours`, single `runs`, and arrows where
            ours is `beyond` the axis.
        settings: hyperparameters that belong to this panel.
        marked: positions of the points that carry a marker.
        texts: beside the points.
    """

    label: str
    style: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    high: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    kind: Kind = "curve"
    settings: str = ""
    marked: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()


class Mark(NamedTuple):
    """A number of the paper: at the end of the curve whose style it has, or a line across the
    panel.
    """

    text: str
    value: float
    style: int | None = None


@dataclasses.dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[Mark] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
    """A figure.

    Attributes:
        name: of its file.
        title: its heading.
        panels: row by row.
        columns: of panels.
        note: what lines, bands and points are.
        source: the paper, with the number of its table or figure.
        shared: whether the panels of a row have one vertical axis.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    columns: int
    note: str = ""
    source: str = ""
    shared: bool = False

    def __post_init__(self) -> None:
        if self.shared:
            # panels row by row; only those of one row share an axis
            rows = [
                self.panels[i : i + self.columns] for i in range(0, len(self.panels), self.columns)
            ]
            object.__setattr__(
                self, "panels", [panel for row in rows for panel in share_value_axis(row)]
            )

    @property
    def caption(self) -> str:
        """The text below the figure, with a full stop after each part."""
        return " ".join(
            sentence if sentence.endswith(".") else f"{sentence}."
            for sentence in (self.title, self.note, self.source)
            if sentence
        )

    def settings(self) -> dict[str, str | None]:
        """Returns the hyperparameters of series by label; None where panels differ in them."""
        # by label, the hyperparameters in all panels
        settings_by_label: dict[str, set[str]] = {}
        for panel in self.panels:
            for series in panel.series:
                settings_by_label.setdefault(series.label, set()).add(series.settings)
        return {
            label: next(iter(values)) if len(values) == 1 else None
            for label, values in settings_by_label.items()
        }

    def legend(self) -> dict[str, Series]:
        """Returns one series for each entry, by its text: the label, with its hyperparameters if
        all panels have the same.
        """
        common, entries = self.settings(), {}
        for panel in self.panels:
            for series in panel.series:
                entries.setdefault(
                    ", ".join(filter(None, (series.label, common[series.label]))), series
                )
        return entries

    def panel_settings(self, panel: Panel) -> list[tuple[Series, str]]:
        """Returns the series of a panel with hyperparameters that other panels do not have, and
        these.
        """
        common = self.settings()
        return [
            (series, series.settings or "-")
            for series in panel.series
            if common[series.label] is None
        ]


def value_axis(metric: str, log: bool | None = None) -> Axis:
    """Returns the vertical axis of a metric; by default logarithmic for losses and gaps.

    See `fit_scale` for values that are not positive.
    """
    column = column_of(metric)
    unit = {1.0: "", 100.0: " (%)", 1e4: " (points²)"}[scale_of(metric)]
    return Axis(column.title + unit, column.logarithmic if log is None else log)


def along(record: Record, axis: str, prices: dict[str, float] | None = None) -> np.ndarray:
    """Returns the positions of a run's observations on an axis of `AXES`.

    `cost` is a price for each round, minibatch gradient and gigabit: `round`, `step` and `gigabit`.

    Raises:
        InvalidInput: gradients, or the virtual clock, are needed, but the run has no record of
            them.
    """
    # axes that not every run has are refused before anything is drawn
    if axis in ("time", "energy") and getattr(record, axis) is None:
        raise InvalidInput.of(
            "against", axis, "another axis, as some of these runs have no devices"
        )
    if axis == "time":
        return np.asarray(record.time, float) / 3600
    if axis in ("gradients", "cost") and record.gradients is None:
        raise InvalidInput.of(
            "against", axis, "another axis, as some of these runs have no record of their gradients"
        )
    if axis != "cost":
        return np.asarray(getattr(record, axis), float)
    price = {"round": 1.0, "step": 1.0, "gigabit": 0.0} | (prices or {})
    gradients = np.asarray(record.gradients, float)
    return (
        price["round"] * record.rounds
        + price["step"] * gradients
        + price["gigabit"] * record.bits / 1e9
    )


def staggered(length: int, position: int, count: int) -> tuple[int, ...]:
    """Returns the points of a curve that carry a marker: those of several curves on each other are
    apart.

    >>> staggered(60, 0, 2), staggered(60, 1, 2)
    ((0, 10, 20, 30, 40, 50), (5, 15, 25, 35, 45, 55))
    """
    # about `_MARKERS` markers, but never fewer points between two than there are curves
    step = max(length // _MARKERS, min(count, length))
    return tuple(range(step * position // max(count, 1), length, step))


def curve(
    runs: Sequence[Record],
    metric: str,
    axis: str,
    prices: dict[str, float] | None = None,
    among: Sequence[Record] = (),
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns positions, mean, and the ends of the band over runs, in the unit of `scale_of`.

    `among` are all runs of the task.
    """
    x = mean_position(runs, [along(run, axis, prices) for run in runs])
    return x, *band(curves_of(runs, metric, among) * scale_of(metric))


def fit_scale(panel: Panel, keep: bool) -> Panel:
    """Returns a panel whose vertical axis is logarithmic only if it can show all that is drawn.

    Otherwise it is linear. With `keep` it stays logarithmic if it can show anything, and what is
    not positive is left out.
    """
    if not panel.y.log:
        return panel
    drawn = [values for s in panel.series for values in (s.y, s.low, s.high)]
    values = np.concatenate([*drawn, [mark.value for mark in panel.marks]])
    values = values[np.isfinite(values)]
    if (values > 0).all():
        return panel
    if not (keep and (values > 0).any()):
        return dataclasses.replace(panel, y=panel.y._replace(log=False))
    floor = float(values[values > 0].min())
    return dataclasses.replace(
        panel,
        series=[_positive(series, floor) for series in panel.series],
        marks=[mark for mark in panel.marks if mark.value > 0],
    )


def _positive(series: Series, floor: float) -> Series:
    """Returns a series without the points that a logarithmic axis cannot show; intervals end at
    `floor`.
    """
    shown = series.y > 0
    low, high = (
        np.where(shown, np.maximum(ends, floor), np.nan) if len(ends) else ends
        for ends in (series.low, series.high)
    )
    return dataclasses.replace(series, y=np.where(shown, series.y, np.nan), low=low, high=high)


def fit_value_axis(panel: Panel, percent: bool) -> Panel:
    """Returns a panel with a vertical axis that starts where accuracies are.

    The first tenth of the horizontal axis does not count, in which they rise from chance; marks do.
    """
    curves = [series for series in panel.series if len(series.x)]
    if not percent or panel.y.log or not curves:
        return panel
    # all curves share the horizontal axis, so its first tenth is the same for all
    start = min(float(np.min(s.x)) for s in curves)
    end = max(float(np.max(s.x)) for s in curves)
    numbers = [mark.value for mark in panel.marks]
    for series in curves:
        # only a curve rises from chance; single points count from the first one on
        included = (
            series.x >= start + _EARLY * (end - start)
            if series.kind == "curve" and len(series.x) > 2
            else slice(None)
        )
        # ends of intervals may be empty
        for values in (series.y, series.low, series.high):
            numbers += [
                float(v) for v in (values[included] if len(values) else values) if math.isfinite(v)
            ]
    if not numbers:
        return panel
    low, high = min(numbers), max(numbers)
    # a constant curve still needs an axis with some height
    pad = 0.06 * (high - low) or 1.0
    bounds = (
        # accuracies stay between 0 and 100
        max(low - pad, 0.0) if low >= 0 else low - pad,
        min(high + pad, 100.0) if high <= 100 else high + pad,
    )
    return dataclasses.replace(panel, y=panel.y._replace(low=bounds[0], high=bounds[1]))


def share_value_axis(panels: Sequence[Panel]) -> list[Panel]:
    """Returns panels of one metric with the same ends of their vertical axes."""
    series = [series for panel in panels for series in panel.series]
    all_values = [values for each in series for values in (each.y, each.low, each.high)]
    values = np.concatenate([*all_values, [mark.value for panel in panels for mark in panel.marks]])
    values = values[np.isfinite(values)]
    # one axis cannot be both
    if len({panel.y.log for panel in panels}) > 1:
        panels = [dataclasses.replace(panel, y=panel.y._replace(log=False)) for panel in panels]
    # panels of other metrics or with logarithmic axes keep their ends
    if (
        not len(values)
        or len({panel.y.title for panel in panels}) > 1
        or any(panel.y.log for panel in panels)
    ):
        return list(panels)
    low, high = float(values.min()), float(values.max())
    pad = 0.06 * (high - low) or 1.0
    limits = max(low - pad, 0.0) if low >= 0 else low - pad, high + pad
    return [
        dataclasses.replace(panel, y=panel.y._replace(low=limits[0], high=limits[1]))
        for panel in panels
    ]


def plain(chart: Chart) -> dict[str, Any]:
    """Returns a chart as plain values for the page, with None where a number is not finite."""

    def numbers(values: np.ndarray) -> list[float | None]:
        return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]

    def panel_data(panel: Panel) -> dict[str, Any]:
        rows = [
            {
                "label": s.label,
                "style": s.style,
                "kind": s.kind,
                "settings": s.settings,
                "marked": list(s.marked),
            }
            | {"texts": list(s.texts)}
            | {name: numbers(getattr(s, name)) for name in ("x", "y", "low", "high")}
            for s in panel.series
        ]
        own_settings = [
            {"style": series.style, "kind": series.kind, "text": f"{series.label}: {text}"}
            for series, text in chart.panel_settings(panel)
        ]
        axes = {"x": panel.x._asdict(), "y": panel.y._asdict()}
        return {
            "title": panel.title,
            "series": rows,
            "marks": [m._asdict() for m in panel.marks],
            "own": own_settings,
            **axes,
        }

    legend = [
        {"text": text, "style": series.style, "kind": series.kind}
        for text, series in chart.legend().items()
    ]
    facts = {"name": chart.name, "title": chart.title, "note": chart.note, "columns": chart.columns}
    return facts | {"legend": legend, "panels": [panel_data(panel) for panel in chart.panels]}
