"""The figures of a recipe: which axes, which panels, and the paper's values in them."""
# pandas states columns and groups of a frame as unions that nothing narrows
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict

from fedax.core import InvalidInput, UnknownName
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.sections import CostSection, check_names
from fedax.results import Record, drawing
from fedax.results.captions import describe_early_ends, describe_figure
from fedax.results.drawing import Picture
from fedax.results.frame import curves_frame, is_lost, numbers_frame
from fedax.results.tables.membership import ATTACKS, AUDITED
from fedax.results.tables.reductions import parse_reduction
from fedax.results.tables.summary import column_of, columns_of

DIMENSIONS = {"variant": "task", "algorithm": "method", "metric": "metric", "x": "axis"}
"""What divides a figure into panels, with its column in data frames."""
AXES = {
    "rounds": "round",
    "bits": "bits",
    "gradients": "gradients",
    "seconds": "seconds",
    "time": "hours",
    "energy": "joules",
    "cost": "cost",
}
"""Horizontal axes of curves, with their columns."""
Targets = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""The paper's numbers by metric, variant and algorithm: `[mean]` or `[mean, deviation]`."""


class PaperMark(BaseModel):
    """A number that the paper's text gives: a line across the panels with this metric, on some or
    all variants.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    text: str
    value: float
    metric: str | None = None
    variants: list[str] | None = None


class Figure(BaseModel):
    """One figure of a recipe, `[[figure]]`.

    Args:
        name: of its file.
        title: its heading on the page.
        x: `paper` (the paper's values beside ours, a row for each algorithm), one or several of
            `AXES` (curves), or the dotted path of a value that the variants set, such as
            `task.clients`, or of an algorithm's option, such as `algorithm.gamma` (means against
            that value, evenly spaced).
        x_title: of the horizontal axis, where it is the path of a value.
        y: the metrics, by default that of the recipe.
        y_title: of the vertical axis, where a panel has several metrics.
        read: how a curve becomes a value, by default as the recipe.
        names: how values of the variants are called in titles, by path:
            `{ "task.clients" = "N = {}" }`.
        panels: the dimensions that divide the figure into panels, of `DIMENSIONS` or paths of
            values; everything else is a line. By default variants, metrics and axes for curves,
            metrics for values.
        variants, algorithms: only these.
        log, log_x: whether the axes are logarithmic; by default losses and gaps are.
        points: of curves, the single observations of the first run, where the paper shows points.
        band: of curves, whether the standard deviation is shown.
        shared: whether the panels of a row have one vertical axis; by default those against a
            value.
        prices: for `x = "cost"`, a panel for each; curves end with the shortest of them, so that
            times are equal.
        mark: numbers of the paper's text. Those of the recipe's targets are dotted lines by
            themselves.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    title: str = ""
    x: str | list[str] = "rounds"
    x_title: str = ""
    y: str | list[str] | None = None
    y_title: str = ""
    read: str | None = None
    names: dict[str, str] = {}
    panels: list[str] | None = None
    variants: list[str] | None = None
    algorithms: list[str] | None = None
    log: bool | None = None
    log_x: bool = False
    points: bool = False
    band: bool = True
    shared: bool | None = None
    prices: list[CostSection] = []
    mark: list[PaperMark] = []

    @property
    def axes(self) -> list[str]:
        return [self.x] if isinstance(self.x, str) else self.x

    @property
    def against_value(self) -> bool:
        """Whether the horizontal axis is a value of the experiment."""
        return "." in self.axes[0]

    @property
    def paths(self) -> list[str]:
        """The paths of values that its axis and panels name."""
        named = [*self.axes[: self.against_value], *(self.panels or ())]
        return [path for path in named if path not in DIMENSIONS]

    @property
    def columns(self) -> list[str]:
        """The columns that divide it into panels."""
        default = ["metric"] if self.against_value else ["variant", "metric", "x"]
        names = default if self.panels is None else self.panels
        return [DIMENSIONS.get(name, name) for name in names]

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuses axes, ways to read, names and values that are not there."""
        field = f"figure {self.name!r}"
        labels = {e.name: [section.shown() for section in e.algorithm] for e in experiments}
        variants = [name for mark in self.mark for name in mark.variants or ()]
        check_names(field, [*variants, *(self.variants or ())], labels)
        methods = [name for names in labels.values() for name in names]
        check_names(field, self.algorithms or (), methods)
        if not self.against_value:
            check_names(f"{field}: x", self.axes, (*AXES, "paper"))
        if self.read is not None:
            parse_reduction(self.read)
        for path in self.paths:
            for experiment in experiments:
                values = [_look_up(experiment, path, name) for name in labels[experiment.name]]
                if all(value is None for value in values):
                    allowed = f"a dimension or a value of {experiment.name!r}"
                    raise InvalidInput.of(f"{field}: x or panels", path, allowed)


@dataclasses.dataclass(frozen=True)
class Drawer:
    """The material of figures.

    Args:
        records: all runs.
        experiments: in which their labels stand for algorithms; without them a label is its
            algorithm.
        metric, read: the numbers compared with the paper.
        targets: the paper's numbers.
        source: the paper with its table or figure, for captions.
    """

    records: Sequence[Record]
    experiments: Sequence[Experiment] = ()
    metric: str = "test_accuracy"
    read: str = "last"
    targets: Targets = dataclasses.field(default_factory=dict)
    source: str = ""

    def draw(self, figure: Figure) -> Picture | None:
        """Returns the picture of a figure, or None if there are no runs for it."""
        shown = self._list_runs(figure)
        y = self.metric if figure.y is None else figure.y
        known = {name for i in shown["run"] for name in self.records[i].scalars}
        metrics = [metric for metric in ([y] if isinstance(y, str) else y) if metric in known]
        if not metrics:
            return None
        columns = figure.columns
        lines = [name for name in ("task", "method", "metric") if name not in columns]
        options: dict[str, Any] = {
            "log": figure.log,
            "y_title": figure.y_title,
            "paper": self._paper_numbers,
            # so that a method looks the same in all figures
            "order": [
                s.shown() for e in self.experiments for s in e.algorithm if "method" in lines
            ],
        }
        if figure.axes == ["paper"]:
            kind, numbers = "paper", self._read(shown, metrics, figure)
            drawn = drawing.beside_paper(numbers, metrics[0], self._paper_numbers)
        elif figure.against_value:
            kind, numbers = "value", self._read(shown, metrics, figure)
            path = figure.axes[0]
            # what the horizontal axis varies is no line
            varied = "method" if path.startswith("algorithm.") else "task"
            lines = [name for name in lines if name != varied]
            drawn = drawing.against_value(
                numbers.dropna(subset=[path]),
                path,
                metrics,
                lines,
                columns,
                x_title=figure.x_title or path.rpartition(".")[2].replace("_", " "),
                shared=figure.shared is not False,
                **options,
            )
        else:
            kind = "dots" if figure.points else "curve"
            frame, axes = self._observe(shown, metrics, figure)
            drawn = drawing.curves(
                frame,
                axes,
                metrics,
                lines,
                columns,
                log_x=figure.log_x,
                band=figure.band,
                points=figure.points,
                shared=bool(figure.shared),
                modes=drawing.modes_of(self.records),
                marks=[(m.text, m.value, m.metric, m.variants) for m in figure.mark],
                **options,
            )
        groups = {
            key: [self.records[i] for i in part["run"]]
            for key, part in shown.groupby(["task", "method"], sort=False)
        }
        printed = any(self._paper_numbers(m, *key) for m in metrics for key in groups)
        read = figure.read or self.read
        note = describe_figure(kind, read, list(groups.values()), printed, figure.band)
        several = shown["task"].nunique() > 1
        ended = [
            describe_early_ends(f"{method}, {task}" if several else method, records)
            for (task, method), records in groups.items()
        ]
        texts = [note, *ended, f"{self.source}." if self.source else ""]
        return Picture(figure.name, drawn, figure.title, " ".join(filter(None, texts)))

    def draw_all(self, figures: Sequence[Figure]) -> list[Picture]:
        """Returns the figures of a recipe, after the paper's numbers beside ours where it has
        several for a task and no figure against a value shows them.
        """
        against = [figure.y or self.metric for figure in figures if figure.against_value]
        beside = [
            Figure(
                name="paper" if metric == self.metric else f"paper_{metric}",
                title=f"The paper beside ours: {column_of(metric).title.lower()}",
                x="paper",
                y=metric,
                variants=list(targets),
            )
            for metric, targets in self.targets.items()
            if metric not in against and any(len(numbers) > 1 for numbers in targets.values())
        ]
        drawn = [self.draw(figure) for figure in (*beside, *figures)]
        return [picture for picture in drawn if picture is not None]

    def _paper_numbers(self, metric: str, task: str, method: str) -> Sequence[float]:
        return self.targets.get(metric, {}).get(task, {}).get(method, ())

    def _list_runs(self, figure: Figure) -> Any:
        """Returns a row for each run that a figure shows, with the values of its paths."""
        members = {(e.name, m.label): (m.method, e) for e in self.experiments for m in e.members()}
        rows = []
        for number, record in enumerate(self.records):
            method, experiment = members.get((record.task, record.label), (record.label, None))
            # an audit is drawn with the variant that it is about
            task = record.task.removesuffix(AUDITED)
            row = {"run": number, "task": task, "method": method, "label": record.label}
            row |= {"seed": record.seed, "draw": record.draw, "lost": is_lost(record)}
            row |= {"audit": record.task != task}
            row |= {path: _look_up(experiment, path, method) for path in figure.paths}
            rows.append(row)
        runs = pd.DataFrame(rows)
        # several members of a grid are lines of their own
        several = runs.groupby(["task", "method"])["label"].transform("nunique").gt(1)
        runs["method"] = runs["method"].where(~several, runs["label"])
        for path in figure.panels or ():
            if path in runs and path not in DIMENSIONS:
                default = f"{path.rpartition('.')[2].replace('_', ' ')} {{}}"
                runs[path] = runs[path].map(figure.names.get(path, default).format)
        for column, names in (("task", figure.variants), ("method", figure.algorithms)):
            if names is not None:
                runs = runs[runs[column].isin(names)]
        return runs

    def _observe(
        self, runs: pd.DataFrame, metrics: Sequence[str], figure: Figure
    ) -> tuple[pd.DataFrame, list[str]]:
        """Returns the observations of runs, and the columns of the horizontal axes."""
        frame = curves_frame(self.records, metrics)
        frame = frame.drop(columns=["task", "method", "seed", "draw", "lost"]).merge(runs, on="run")
        frame.loc[frame["audit"], [name for name in metrics if name not in ATTACKS]] = math.nan
        axes = []
        for axis in figure.axes:
            needed = "gradients" if axis == "cost" else AXES[axis]
            if needed not in frame or frame[needed].isna().any():
                allowed = f"another axis, as some of these runs have no record of {needed}"
                raise InvalidInput.of("against", axis, allowed)
            if axis != "cost":
                axes.append(AXES[axis])
                continue
            costs = [e.cost for e in self.experiments if e.cost]
            for price in figure.prices or costs[:1] or [CostSection()]:
                frame, title = _add_cost(frame, price)
                axes.append(title)
        return frame, axes

    def _read(self, runs: pd.DataFrame, metrics: Sequence[str], figure: Figure) -> pd.DataFrame:
        """Returns a row for each run with its numbers."""
        read = figure.read or self.read
        reads = {record.task: read for record in self.records}
        values = numbers_frame(self.records, reads, metrics)
        values = values.pivot(index="run", columns="metric", values="value")
        numbers = runs.join(values.reindex(columns=list(metrics)), on="run")
        # a mean over some of the runs would be read as one over all
        missing = (
            numbers[list(metrics)].isna().groupby([runs[k] for k in ("task", "label", "audit")])
        )
        numbers[list(metrics)] = numbers[list(metrics)].mask(missing.transform("any"))
        return numbers.dropna(subset=list(metrics), how="all")


def _add_cost(frame: pd.DataFrame, price: CostSection) -> tuple[pd.DataFrame, str]:
    """Adds a column of time at some prices, empty beyond the end of the shortest line, where there
    is no comparison at equal time.
    """
    prices = {"a round": price.round, "a local step": price.step, "a gigabit": price.gigabit}
    title = "time: " + ", ".join(f"{name} {value:g}" for name, value in prices.items() if value)
    cost = price.round * frame["round"] + price.step * frame["gradients"]
    cost += price.gigabit * frame["bits"] / 1e9
    ends = cost.groupby([frame["task"], frame["method"], frame["lost"]]).max()
    # runs that were lost do not shorten the others
    whole = ends[~ends.index.get_level_values("lost")]
    ends = (whole if len(whole) else ends).groupby("task").min()
    return frame.assign(**{title: cost.where(cost <= frame["task"].map(ends))}), title


def draw_curves(
    records: Sequence[Record],
    experiments: Sequence[Experiment] = (),
    against: str = "rounds",
    metrics: Sequence[str] | None = None,
) -> list[Picture]:
    """Returns one figure per metric, with a panel for every task; by default of those that reports
    draw.

    Raises:
        InvalidInput: an axis that is none of `AXES`, or of which the runs have no record.
        UnknownName: a metric that no run has.
    """
    if against not in AXES:
        raise InvalidInput.of("against", against, "one of " + ", ".join(AXES))
    known = {name for record in records for name in record.scalars}
    for metric in metrics or ():
        if metric not in known:
            raise UnknownName.among("metric", metric, known)
    drawer = Drawer(records, experiments)
    metrics = metrics or [column.metric for column in columns_of(records) if column.chart]
    drawn = [drawer.draw(Figure(name=metric, x=against, y=metric)) for metric in metrics]
    return [picture for picture in drawn if picture is not None]


def _look_up(experiment: Experiment | None, path: str, method: str) -> Any:
    """Returns a value of the experiment, or of one of its algorithms; None if it is not written
    there.
    """
    if experiment is None:
        return None
    table, _, key = path.partition(".")
    methods = {section.shown(): section.options for section in experiment.algorithm}
    tables: Mapping[str, Mapping[str, Any]] = {
        "algorithm": methods.get(method, {}),
        "task": experiment.task.options,
        "schedule": experiment.schedule,
        "solver": experiment.solver.options,
    }
    return tables.get(table, {}).get(key)
