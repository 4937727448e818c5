"""The figures of a recipe: which axes, which panels, and the paper's values in them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict

from fedax.core import InvalidInput
from fedax.results import drawing
from fedax.results.drawing import Picture
from fedax.results.frame import curves_frame, describe_early_ends, numbers_frame
from fedax.results.record import AUDITED, Record, by_label, check_metrics, finished
from fedax.results.tables.reductions import Reduction, describe_reduction
from fedax.results.tables.summary import charts_of

DIMENSIONS = {"variant": "task", "algorithm": "method", "metric": "metric", "x": "axis"}
"""What divides a figure into panels, with its column in data frames."""
AXES = {
    "rounds": "round",
    "bits": "bits",
    "gradients": "gradients",
    "seconds": "seconds",
    "time": "hours",
    "energy": "joules",
}
"""Horizontal axes of curves, with their columns."""

_MEANS = "means over the runs, or over the draws of the data if there are several"


class Figure(BaseModel):
    """One figure of a recipe, `[[figure]]`.

    Args:
        name: of its file.
        title: its heading on the page.
        x: one or several of `AXES` (curves), or the dotted path of a setting in which the runs
            differ, such as `task.clients` or `algorithm.gamma` (means against that value, evenly
            spaced).
        x_title: of the horizontal axis, where it is the path of a setting.
        y: the metrics, by default that of the recipe.
        y_title: of the vertical axis, where a panel has several metrics.
        read: how a curve becomes a value, by default as the recipe.
        panels: the dimensions that divide the figure into panels, of `DIMENSIONS` or paths of
            settings; everything else is a line. By default variants, metrics and axes for curves,
            metrics for values.
        variants, algorithms: only these.
        log: whether the vertical axis is logarithmic; by default losses and gaps are.
        band: of curves, whether the standard deviation is shown.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    title: str = ""
    x: str | list[str] = "rounds"
    x_title: str = ""
    y: str | list[str] | None = None
    y_title: str = ""
    read: Reduction | None = None
    panels: list[str] | None = None
    variants: list[str] | None = None
    algorithms: list[str] | None = None
    log: bool | None = None
    band: bool = True

    @property
    def against_value(self) -> bool:
        """Whether the horizontal axis is a setting of the runs."""
        return isinstance(self.x, str) and "." in self.x

    def select(self, records: Sequence[Record]) -> list[Record]:
        """Returns the runs that it shows; an audit with the variant that it is about."""
        shown = []
        for run in records:
            task = run.task.removesuffix(AUDITED)
            if task != run.task:
                # its losses and accuracies are those of models that had fewer examples
                areas = {name: run.metrics[name] for name in run.metrics if name.startswith("auc")}
                run = dataclasses.replace(run, task=task, metrics=areas)
            if task in (self.variants or [task]) and run.label in (self.algorithms or [run.label]):
                shown.append(run)
        return shown

    def draw(
        self,
        records: Sequence[Record],
        metric: str = "test_accuracy",
        read: str = "last",
        paper: drawing.Paper = drawing.NO_NUMBERS,
        source: str = "",
    ) -> Picture | None:
        """Returns its picture, or None if there are no runs for it.

        Args:
            records: all runs, labelled by their algorithms.
            metric, read: the numbers compared with the paper.
            paper: the paper's numbers.
            source: the paper with its table or figure, for the caption.
        """
        selected = self.select(records)
        runs = finished(selected)
        if not self.against_value:
            runs = runs or selected
        known = {name for run in runs for name in run.scalars}
        metrics = [name for name in drawing.listed(self.y or metric) if name in known]
        if not metrics:
            return None
        default = ["metric"] if self.against_value else ["variant", "metric", "x"]
        panels = default if self.panels is None else self.panels
        columns = [DIMENSIONS.get(name, name) for name in panels]
        lines = [name for name in ("task", "method", "metric") if name not in columns]
        options: dict[str, Any] = {
            "log": self.log,
            "y_title": self.y_title,
            "paper": paper,
            # so that a method looks the same in all figures
            "order": list(by_label(records)) if "method" in lines else (),
        }
        read = self.read or read
        xs = drawing.listed(self.x)
        if self.against_value:
            frame = numbers_frame(runs, {run.task: read for run in runs}, metrics)
        else:
            frame = curves_frame(runs, metrics)
            frame["audit"] = ["auc" in runs[i].scalars for i in frame["run"]]
        paths = [name for name in (*xs, *columns) if "." in name]
        for path in paths:
            frame[path] = [_find_setting(runs[i], path) for i in frame["run"]]
        for path in paths[self.against_value :]:
            frame[path] = _title(path) + " " + frame[path].map(str)
        if self.against_value:
            (path,) = xs
            # what the horizontal axis varies is no line
            varied = "method" if path.startswith("algorithm.") else "task"
            lines = [name for name in lines if name != varied]
            frame = frame.dropna(subset=[path])
            options["x_title"] = self.x_title or _title(path)
            drawn = drawing.against_value(frame, path, lines, columns, **options)
            about = f"{describe_reduction(read)}, {_MEANS}; bars: standard deviation."
            printed = "Diamonds: the paper, with its standard deviation."
        else:
            axes = [_check_axis(frame, name) for name in xs]
            drawn = drawing.curves(frame, axes, metrics, lines, columns, band=self.band, **options)
            about = f"{_MEANS.capitalize()}{'; bands: standard deviation' * self.band}."
            printed = "Dotted lines: the paper's values."
        texts = [
            about,
            printed * any(key[0] in metrics for key in paper),
            "Interrupted runs are left out." * (len(runs) < len(selected)),
            describe_early_ends(runs),
            source and f"{source}.",
        ]
        return Picture(self.name, drawn, self.title, " ".join(filter(None, texts)))


def draw_curves(
    records: Sequence[Record], against: str = "rounds", metrics: Sequence[str] | None = None
) -> list[Picture]:
    """Returns one figure per metric, with a panel for every task; by default of those that reports
    draw.

    Raises:
        InvalidInput: an axis that is none of `AXES`, or of which the runs have no record.
        UnknownName: a metric that no run has.
    """
    check_metrics(records, metrics or ())
    metrics = metrics or charts_of(records)
    drawn = [Figure(name=metric, x=against, y=metric).draw(records) for metric in metrics]
    return [picture for picture in drawn if picture]


def _check_axis(frame: pd.DataFrame, axis: str) -> str:
    """Returns the column of a horizontal axis."""
    if axis not in AXES:
        raise InvalidInput.of("against", axis, "one of " + ", ".join(AXES))
    column = AXES[axis]
    if column not in frame or frame[column].isna().to_numpy().any():
        allowed = f"another axis, as some of these runs have no record of {column}"
        raise InvalidInput.of("against", axis, allowed)
    return column


def _find_setting(run: Record, path: str) -> Any:
    """Returns a setting of a run, such as `task.clients`; None if it is not known."""
    table, _, key = path.partition(".")
    return (run.settings or {}).get(table, {}).get(key)


def _title(path: str) -> str:
    return path.rpartition(".")[2].replace("_", " ")
