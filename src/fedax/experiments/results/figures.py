"""The figures of a recipe: which axes, which panels, and the paper's values in them."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from fedax.core import InvalidInput, UnknownName
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.plan import merge_settings
from fedax.experiments.config.sections import CostSection
from fedax.experiments.results.captions import note_of
from fedax.results import Record
from fedax.results.drawing.charts import AXES, Chart, Mark, column_of
from fedax.results.drawing.panels import (
    Choice,
    Spot,
    curve_panel,
    difference_panel,
    dot_panel,
    value_panel,
    with_common_values,
)
from fedax.results.drawing.styles import styles
from fedax.results.record import by_label, by_task
from fedax.results.tables.means import describe_early_ends
from fedax.results.tables.membership import ATTACKS, AUDITED
from fedax.results.tables.reductions import parse_reduction
from fedax.results.tables.summary import columns_of

DIMENSIONS = ("variant", "algorithm", "metric", "x")
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
            that value).
        x_title: of the horizontal axis, where it is the path of a value.
        y: the metrics, by default that of the recipe.
        y_title: of the vertical axis, where a panel has several metrics.
        read: how a curve becomes a value, by default as the recipe.
        minus: label of an algorithm whose runs on the same data with the same seed are subtracted,
            where `x` is the path of a value: a point for every draw of the data (or seed), and
            their mean with its 95 % interval.
        names: how values of the variants are called in titles, by path:
            `{ "task.clients" = "N = {}" }`.
        panels: the dimensions that divide the figure into panels, of `DIMENSIONS` or paths of
            values; everything else is a series. By default variants, metrics and axes for curves,
            metrics for values.
        variants, algorithms: only these.
        log, log_x: whether the axes are logarithmic; by default losses and gaps are.
        points: of curves, the single observations of the first run, where the paper shows points.
        band: of curves, whether the standard deviation is shown.
        shared: whether the panels of a row have one vertical axis; by default those against a
            value.
        prices: for `x = "cost"`, a panel for each; curves end with the shortest of them, so that
            times are equal.
        mark: numbers of the paper's text. Those of the recipe's targets stand at the ends of the
            curves by themselves.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    title: str = ""
    x: str | list[str] = "rounds"
    x_title: str = ""
    y: str | list[str] | None = None
    y_title: str = ""
    read: str | None = None
    minus: str | None = None
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

    def check(self, experiments: Sequence[Experiment]) -> None:
        """Refuses axes, panels, ways to read, and names that are not there."""
        field = f"figure {self.name!r}"
        if self.read is not None:
            parse_reduction(self.read)
        # x is one or several axes of curves, or "paper", or one dotted path
        if not self.against_value and self.axes != ["paper"]:
            for axis in self.axes:
                if axis not in AXES:
                    raise UnknownName.among(
                        f"{field}: x", axis, (*AXES, "paper", "the path of a value")
                    )
        elif len(self.axes) > 1:
            raise InvalidInput.of(f"{field}: x", self.x, "several only of " + ", ".join(AXES))
        if self.minus is not None and not self.against_value:
            raise InvalidInput.of(
                f"{field}: minus", self.minus, "only where x is the path of a value"
            )
        for path, text in self.names.items():
            if path not in (self.panels or ()) or text.count("{}") != 1:
                raise InvalidInput.of(
                    f"{field}: names",
                    {path: text},
                    "paths of the panels, each with a text that has {} once",
                )
        if "cost" not in self.axes and self.prices:
            raise InvalidInput.because(f"{field}: prices", 'only with x = "cost"')
        # in every experiment at least one algorithm must have the value
        for path in (*(self.axes if self.against_value else ()), *(self.panels or ())):
            if path not in DIMENSIONS:
                for experiment in experiments:
                    if all(
                        _look_up_value(experiment, path, label) is None
                        for label in [s.shown() for s in experiment.algorithm]
                    ):
                        raise InvalidInput.of(
                            f"{field}: x or panels",
                            path,
                            f"a dimension or a value of {experiment.name!r}",
                        )
        # variants of the figure and its marks, and its methods, must be those of the recipe
        variants = list(dict.fromkeys(experiment.name for experiment in experiments))
        algorithms = list(
            dict.fromkeys(section.shown() for e in experiments for section in e.algorithm)
        )
        marked = [name for mark in self.mark for name in mark.variants or ()]
        methods = [*(self.algorithms or ()), *([] if self.minus is None else [self.minus])]
        for names, known_names in (
            ((*(self.variants or ()), *marked), variants),
            (methods, algorithms),
        ):
            for name in names:
                if name not in known_names:
                    raise UnknownName.among(field, name, known_names)


class Runs(NamedTuple):
    """The runs of one algorithm on one task: what a series is made of. An audit `beside` a variant
    has that one's title, and only its areas are drawn.
    """

    task: str
    method: str
    style: int
    settings: str
    records: list[Record]
    experiment: Experiment | None
    beside: bool = False


class Split(NamedTuple):
    """Spots of a figure, divided into panels.

    Attributes:
        dimensions: what divides them: `DIMENSIONS` or paths of values.
        panels: the spots by their values in the dimensions; row by row, the first dimension
            slowest.
    """

    dimensions: Sequence[str]
    panels: Mapping[tuple[str, ...], list[Spot]]

    @property
    def lengths(self) -> list[int]:
        """The number of different values in each dimension."""
        return [len({key[k] for key in self.panels}) for k in range(len(self.dimensions))]

    def title(self, key: tuple[str, ...]) -> str:
        """Returns the title of a panel: its values in the dimensions that differ between panels.

        Metrics and axes are left out, because the axes' titles say them.
        """
        differing = [
            k
            for k, (name, length) in enumerate(zip(self.dimensions, self.lengths, strict=True))
            if length > 1 and name not in ("metric", "x")
        ]
        # a single panel still says which variant it shows
        if not differing and "variant" in self.dimensions and len(self.panels) == 1:
            differing = [self.dimensions.index("variant")]
        return ", ".join(key[k] for k in differing)

    def columns(self, figure: Figure) -> int:
        """Returns the number of panels in a row."""
        # dimensions with one value make no rows or columns
        spread = [length for length in self.lengths if length > 1]
        # only a complete grid keeps its columns; otherwise rows of at most four, equally full
        is_grid = len(spread) > 1 and len(self.panels) == math.prod(spread)
        rows = -(-len(self.panels) // 4)
        columns = spread[-1] if is_grid else -(-len(self.panels) // rows)
        # beside the paper's values each row is named, which needs width
        return min(columns, 2) if figure.axes == ["paper"] else columns


@dataclasses.dataclass(frozen=True)
class Drawer:
    """The material of figures.

    Args:
        runs: all of a directory.
        metric, read: the numbers compared with the paper.
        targets: the paper's numbers.
        source: the paper with its table or figure, for captions.
    """

    runs: Sequence[Runs]
    metric: str = "test_accuracy"
    read: str = "last"
    targets: Targets = dataclasses.field(default_factory=dict)
    source: str = ""

    def chart(self, figure: Figure) -> Chart | None:
        """Returns the chart of a figure, or None if there are no runs for it.

        A spot is one algorithm on one task with one metric and axis. The figure's dimensions split
        the spots into panels; within a panel each spot (or row of spots) is a series.
        """
        runs = [run for run in self.runs if _shows_run(figure, run)]
        spots = self._make_spots(figure, runs)
        if not spots:
            return None
        # by task and method, to look up the experiment of a spot
        runs_by_key = {(run.task, run.method): run for run in runs}
        split = _split_spots(figure, spots, runs_by_key)
        reduction = figure.read or self.read
        choice = Choice(
            log=figure.log,
            log_x=figure.log_x,
            x_title=figure.x_title,
            y_title=figure.y_title,
            read=reduction,
            points=figure.points,
            band=figure.band,
        )
        panels = [
            self._make_panel(
                figure, choice, split.title(key), panel_spots, runs_by_key, split.dimensions
            )
            for key, panel_spots in split.panels.items()
        ]
        columns = split.columns(figure)
        if figure.against_value and figure.minus is None:
            panels = with_common_values(panels, columns)
        shared = (
            figure.against_value and not figure.minus if figure.shared is None else figure.shared
        )
        note = _note(figure, reduction, runs, spots)
        return Chart(
            figure.name, figure.title, panels, columns, note, self.source, shared and columns > 1
        )

    def _make_spots(self, figure: Figure, runs: Sequence[Runs]) -> list[Spot]:
        """Returns a spot for each axis, run and metric that all records of the run have."""
        y = self.metric if figure.y is None else figure.y
        metrics = [y] if isinstance(y, str) else y
        return [
            Spot(
                run.task,
                run.method,
                run.style,
                run.settings,
                run.records,
                metric,
                axis,
                price,
                self._paper_numbers(run, metric),
            )
            for axis, price in self._list_axes(figure, runs)
            for run, metric in itertools.product(runs, metrics)
            if all(metric in record.scalars for record in run.records)
            and (metric in ATTACKS or not run.beside)
        ]

    def _list_axes(
        self, figure: Figure, runs: Sequence[Runs]
    ) -> list[tuple[str, dict[str, float] | None]]:
        """Returns the horizontal axes, with the prices of those in time."""
        positions: list[tuple[str, dict[str, float] | None]] = []
        for axis in figure.axes:
            if axis != "cost":
                positions.append((axis, None))
                continue
            # prices of the figure, else those of the first experiment that has some, else the
            # default ones
            experiment_costs = [
                run.experiment.cost for run in runs if run.experiment and run.experiment.cost
            ]
            positions += [
                (axis, price.model_dump())
                for price in figure.prices or experiment_costs[:1] or [CostSection()]
            ]
        return positions

    def _paper_numbers(self, run: Runs, metric: str) -> Sequence[float]:
        return self.targets.get(metric, {}).get(run.task, {}).get(run.method, ())

    def _make_panel(
        self,
        figure: Figure,
        choice: Choice,
        title: str,
        spots: list[Spot],
        runs_by_key: Mapping[Any, Runs],
        dimensions: Sequence[str],
    ) -> Any:
        if figure.axes == ["paper"]:
            return dot_panel(title, spots, choice)
        # by dimension that does not split panels: the values in this panel
        values_by_dimension = {
            name: list(dict.fromkeys(_dimension_value(s, runs_by_key, name) for s in spots))
            for name in DIMENSIONS
            if name not in dimensions
        }
        # only dimensions that vary in the panel are named in labels
        varying = [name for name, values in values_by_dimension.items() if len(values) > 1]
        if figure.against_value:
            path = figure.axes[0]
            by_variant = not path.startswith("algorithm.")
            # what the horizontal axis varies would otherwise give each point a series
            varying = [
                name for name in varying if name != ("variant" if by_variant else "algorithm")
            ]
            values = [
                (
                    spot,
                    _look_up_number(
                        runs_by_key[spot.task, spot.method].experiment, path, spot.method
                    ),
                )
                for spot in spots
            ]
            path_title = figure.x_title or path.rpartition(".")[2].replace("_", " ")
            # by label, the points (x, spot) of one series
            rows: dict[str, list[tuple[float, Spot]]] = {}
            for spot, value in values:
                label = (
                    "mean, 95 % interval"
                    if figure.minus is not None and not varying
                    else _label(spot, runs_by_key, varying)
                )
                rows.setdefault(label, []).append((value, spot))
            for label, points in rows.items():
                # two spots at the same x would lie on top of each other
                if len({value for value, _ in points}) < len(points):
                    raise InvalidInput.of(
                        f"figure {figure.name!r}: panels",
                        list(dimensions),
                        f"what keeps the points of {label!r} apart",
                    )
            choice = choice._replace(x_title=path_title)
            if figure.minus is not None:
                # taken from all runs: the figure itself may leave this algorithm out
                base = {run.task: run.records for run in self.runs if run.method == figure.minus}
                return difference_panel(title, rows, base, figure.minus, choice)
            return value_panel(title, rows, choice, _select_marks(figure, spots))
        curves = [(_label(spot, runs_by_key, varying), spot) for spot in spots]
        # curves of one algorithm in a panel are told apart by their place, others keep their style
        # in all figures
        styled = varying == ["algorithm"] or not varying
        return curve_panel(title, curves, choice, _select_marks(figure, spots), styled)


def _shows_run(figure: Figure, run: Runs) -> bool:
    """Returns whether a figure shows a run."""
    has_variant = figure.variants is None or run.task in figure.variants
    return has_variant and (figure.algorithms is None or run.method in figure.algorithms)


def _split_spots(figure: Figure, spots: Sequence[Spot], runs_by_key: Mapping[Any, Runs]) -> Split:
    """Divides spots into panels by the dimensions of a figure, or by the default ones of its
    kind.
    """
    default = ["metric"] if figure.against_value else ["variant", "metric", "x"]
    dimensions = default if figure.panels is None else figure.panels
    groups: dict[tuple[str, ...], list[Spot]] = {}
    for spot in spots:
        key = tuple(_dimension_value(spot, runs_by_key, name, figure.names) for name in dimensions)
        groups.setdefault(key, []).append(spot)
    return Split(dimensions, _sort_panels(groups, dimensions))


def _note(figure: Figure, reduction: str, runs: Sequence[Runs], spots: Sequence[Spot]) -> str:
    """Returns the note of a chart: what is drawn, and which runs ended early."""
    if figure.axes == ["paper"]:
        kind = "paper"
    elif figure.minus is not None:
        kind = "minus"
    elif figure.against_value:
        kind = "value"
    else:
        kind = "dots" if figure.points else "curve"
    printed = any(spot.paper for spot in spots)
    records = [run.records for run in runs]
    note = note_of(kind, reduction, records, printed, figure.band, figure.minus or "")
    has_several_tasks = len({run.task for run in runs}) > 1
    ended = [
        describe_early_ends(
            f"{run.method}, {run.task}" if has_several_tasks else run.method, run.records
        )
        for run in runs
    ]
    return " ".join(filter(None, (note, *ended)))


def drawer(
    records: Sequence[Record],
    experiments: Sequence[Experiment] = (),
    metric: str = "test_accuracy",
    read: str = "last",
    targets: Targets | None = None,
    source: str = "",
) -> Drawer:
    """Returns the material of figures: the runs with the algorithms that their labels stand for,
    and with the hyperparameters of their panels.

    Without the experiments a label is its algorithm.
    """
    # by (task, label), the member that the label stands for, and its experiment
    members = {(e.name, member.label): (member, e) for e in experiments for member in e.members()}
    entries = []
    for task, task_runs in by_task(records).items():
        for label, runs in by_label(task_runs).items():
            member, experiment = members.get((task, label), (None, None))
            entries.append(
                (task, label if member is None else member.method, member, experiment, runs)
            )
    # methods of the files come first, so that styles do not depend on what has run
    methods = [section.shown() for e in experiments for section in e.algorithm]
    style_numbers = styles([*methods, *(method for _, method, *_ in entries)])
    # by method and option, the values over all members: only options that vary are shown
    option_values: dict[str, dict[str, set[str]]] = {}
    for member, _ in members.values():
        for key, value in _member_options(member).items():
            option_values.setdefault(member.method, {}).setdefault(key, set()).add(str(value))
    figure_runs = []
    for task, method, member, experiment, runs in entries:
        options = (
            {}
            if member is None
            else {
                k: v
                for k, v in _member_options(member).items()
                if len(option_values[method][k]) > 1
            }
        )
        text = ", ".join(
            f"{key.replace('_', ' ')} {value:g}"
            if isinstance(value, float)
            else f"{key.replace('_', ' ')} {value}"
            for key, value in options.items()
        )
        # an audit is drawn with the variant that it is about
        variant, beside = task.removesuffix(AUDITED), task.endswith(AUDITED)
        figure_runs.append(
            Runs(variant, method, style_numbers[method], text, runs, experiment, beside)
        )
    return Drawer(figure_runs, metric, read, targets or {}, source)


def curves(
    records: Sequence[Record],
    experiments: Sequence[Experiment] = (),
    against: str = "rounds",
    metrics: Sequence[str] | None = None,
) -> list[Chart]:
    """Returns one figure per metric, with a panel for every task; by default of those that reports
    draw.

    Raises:
        InvalidInput: an axis that is none of `AXES`, or of which the runs have no record; a metric
            that no run has.
    """
    if against not in AXES:
        raise InvalidInput.of("against", against, "one of " + ", ".join(AXES))
    known_metrics = {name for record in records for name in record.scalars}
    for metric in metrics or ():
        if metric not in known_metrics:
            raise UnknownName.among("metric", metric, known_metrics)
    draw = drawer(records, experiments)
    metrics = metrics or [column.metric for column in columns_of(records) if column.chart]
    figures = [Figure(name=metric, x=against, y=metric) for metric in metrics]
    return [chart for figure in figures if (chart := draw.chart(figure))]


def charts_of(figures: Sequence[Figure], draw: Drawer) -> list[Chart]:
    """Returns the figures of a recipe, after the paper's numbers beside ours where it has several
    for a task.

    Figures of the same metric against a value have the paper's numbers in them.
    """
    all_figures = [
        Figure(
            name="paper" if metric == draw.metric else f"paper_{metric}",
            title=f"The paper beside ours: {column_of(metric).title.lower()}",
            x="paper",
            y=metric,
            variants=list(targets),
        )
        for metric, targets in draw.targets.items()
        if any(len(numbers) > 1 for numbers in targets.values())
        # a figure of this metric against a value has the paper's numbers already
        and not any(
            figure.against_value and figure.y in (metric, None if metric == draw.metric else metric)
            for figure in figures
        )
    ]
    all_figures += figures
    return [chart for figure in all_figures if (chart := draw.chart(figure))]


def _member_options(member: Any) -> dict[str, Any]:
    own_options = merge_settings(member.algorithm.options, member.algorithm.solver, {})
    options = own_options | member.settings
    return {key: value for key, value in options.items() if isinstance(value, int | float | str)}


def _label(spot: Spot, runs_by_key: Mapping[Any, Runs], dimensions: Sequence[str]) -> str:
    values = [_dimension_value(spot, runs_by_key, name) for name in dimensions]
    # after the first part, titles of metrics lose their capital, but not AUC
    words = [
        value[:1].lower() + value[1:] if name == "metric" and not value.isupper() else value
        for name, value in zip(dimensions, values, strict=True)
    ]
    return ", ".join([*values[:1], *words[1:]]) or spot.method


def _dimension_value(
    spot: Spot, runs_by_key: Mapping[Any, Runs], name: str, names: Mapping[str, str] | None = None
) -> str:
    """Returns the panel or series of a spot in one dimension."""
    if name in DIMENSIONS:
        axis = spot.axis if spot.price is None else f"{spot.axis} {spot.price}"
        return {
            "variant": spot.task,
            "algorithm": spot.method,
            "metric": column_of(spot.metric).title,
            "x": axis,
        }[name]
    value = _look_up_value(runs_by_key[spot.task, spot.method].experiment, name, spot.method)
    return (
        (names or {}).get(name, f"{name.rpartition('.')[2].replace('_', ' ')} {{}}").format(value)
    )


def _sort_panels(
    groups: dict[tuple[str, ...], list[Spot]], dimensions: Sequence[str]
) -> dict[tuple[str, ...], list[Spot]]:
    """Returns panels row by row: the first dimension changes slowest."""
    orders = [list(dict.fromkeys(key[k] for key in groups)) for k in range(len(dimensions))]
    return dict(
        sorted(
            groups.items(),
            key=lambda item: [
                order.index(value) for order, value in zip(orders, item[0], strict=True)
            ],
        )
    )


def _look_up_value(experiment: Experiment | None, path: str, method: str) -> Any:
    """Returns a value of the experiment, or of one of its algorithms; None if it is not written
    there.
    """
    table_name, _, key = path.partition(".")
    if experiment is None:
        return None
    if table_name == "algorithm":
        section = next((s for s in experiment.algorithm if s.shown() == method), None)
        return None if section is None else section.options.get(key)
    tables = {
        "task": experiment.task.options,
        "schedule": experiment.schedule,
        "solver": experiment.solver.options,
    }
    return tables.get(table_name, {}).get(key)


def _look_up_number(experiment: Experiment | None, path: str, method: str) -> float:
    value = _look_up_value(experiment, path, method)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput.of(f"figure: x = {path!r}", value, "the path of a number")
    return float(value)


def _select_marks(figure: Figure, spots: Sequence[Spot]) -> list[Mark]:
    tasks, metrics = {spot.task for spot in spots}, {spot.metric for spot in spots}
    return [
        Mark(mark.text, mark.value)
        for mark in figure.mark
        if (mark.metric is None or mark.metric in metrics)
        and (mark.variants is None or tasks & set(mark.variants))
    ]
