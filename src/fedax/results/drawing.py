"""Figures by Matplotlib: curves, and means against a value beside the paper's numbers.

Both take a data frame with a row for each observation (`curves_frame`) or run and return a
figure of Matplotlib: a panel for each value of the columns `col`, a line for each value of `hue`.
"""
# pandas states columns and groups of a frame as unions that nothing narrows
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import contextlib
import io
import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from fedax.core import InvalidInput
from fedax.core.directions import Mode, is_percent, worst_of
from fedax.observe.modes import mode_of
from fedax.results.looks import THEME, Look, choose_looks
from fedax.results.tables.statistics import deviation_of, units_of
from fedax.results.tables.summary import column_of, scale_of
from fedax.utils.files import portable, write

if TYPE_CHECKING:
    import matplotlib.figure

Columns = str | Sequence[str]
Paper = Mapping[tuple[str, str, str], Sequence[float]]
"""The paper's numbers of a metric, task and method: a mean, and its deviation if there is one."""
NO_NUMBERS: Paper = {}
FORMATS = ("pdf", "png", "svg")
LINES = 6
"""Lines with a look of their own in a panel; further ones are grey."""
TITLES = {
    "round": "communication rounds",
    "bits": "bits sent, both directions",
    "gradients": "minibatch gradients of a client",
    "seconds": "seconds",
    "hours": "hours on the virtual clock",
    "joules": "energy of all clients, J",
}
"""Of columns that are horizontal axes; other columns are titled by their names."""
PUBLISHED = "the paper, ± standard deviation"

_WIDTHS = {1: 3.4, 2: 5.1}  # inches, by columns of panels: a paper's column, and one and a half
_WIDTH = 7.0  # of the text of a paper
_HEIGHTS = {1: 2.2, 2: 2.2, 3: 1.9}
_LETTER = 0.07  # inches, of a label
_INK, _QUIET, _LINE = (THEME[name][0] for name in ("ink", "quiet", "line"))
_STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": "medium",
    "legend.frameon": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _QUIET,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.8,
    "errorbar.capsize": 2,
    "text.parse_math": False,  # titles of users may have dollar signs
    "pdf.fonttype": 42,  # TrueType: IEEE and ACM refuse Type 3
    "svg.fonttype": "none",
    "svg.hashsalt": "fedax",  # equal figures are equal files
}


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """Sets the style of figures; of functions, as a decorator."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        yield


class Picture(NamedTuple):
    """A figure with the name of its file, its title and the text below it."""

    name: str
    figure: "matplotlib.figure.Figure"
    title: str = ""
    note: str = ""


def save(
    pictures: Sequence[Picture], folder: Path, formats: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Writes pictures as `<name>.<format>`, by names that every system can hold beside each other.

    Raises:
        InvalidInput: a format that is none of `FORMATS`.
        WriteFailed: a file that cannot be written.
    """
    for name in formats:
        if name not in FORMATS:
            raise InvalidInput.of("format", name, "one of " + ", ".join(FORMATS))
    files = []
    taken = set[str]()
    for picture in pictures:
        base = portable(picture.name)
        # two names that differ in their case only would be one file on some systems
        names = itertools.chain([base], (f"{base}-{i}" for i in itertools.count(2)))
        name = next(name for name in names if name.casefold() not in taken)
        taken.add(name.casefold())
        files += [save_as(picture, folder / f"{name}.{form}") for form in formats]
    return files


def save_as(picture: Picture, path: Path) -> Path:
    """Writes one picture into a file, whose ending is the format.

    Raises:
        WriteFailed: it cannot be written.
    """
    form = path.suffix.removeprefix(".")
    # no date inside: the same runs give the same file
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(form, {})
    content = io.BytesIO()
    with _style():
        picture.figure.savefig(content, format=form, dpi=200, metadata=metadata)
    write(path, content.getvalue())
    return path


def to_svg(figure: "matplotlib.figure.Figure") -> str:
    """Returns an SVG element for a page, in the colours of its style sheet."""
    content = io.StringIO()
    with _style():
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(
        "<metadata>.*?</metadata>|<style.*?</style>", "", content.getvalue(), flags=re.DOTALL
    )

    def shorten(tag: re.Match[str]) -> str:
        # what nothing refers to, what the page says itself, and below a tenth of a point
        text = re.sub(r' id="[\w.]+_\d+"|font-family: .*?; ', "", tag[0])
        text = re.sub(r"(\d+\.\d)\d+", r"\1", text)
        for name, (light, _) in THEME.items():
            text = text.replace(light, f"var(--{name})")
        return re.sub(r"\s+", " ", text)

    # not the texts between them, which are the users'
    return re.sub("<[^>]*>", shorten, svg[svg.index("<svg") :])


def mean_curve(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns the mean of runs with the ends of a band: columns `x`, `mean`, `low`, `high`.

    They are of the same units as the numbers of tables, see `units_of`: of several draws of the
    data each counts once, by the mean over its seeds.

    It has the rounds at which all runs were observed that had not ended. A run that has ended keeps
    its last value, and where it is lost it counts as the worst value. After the end of a run the
    mean of `x` grows as that of the others does. The band is one standard deviation, within the
    range of the values: no accuracy is above one, and on a logarithmic axis an end near zero would
    fill the chart.

    Args:
        runs: rows with `run`, `draw`, `round`, `x`, `value`, `lost`, and `worst`, which is what
            lost runs count as; NaN where there is no worst value.
    """
    table = runs.pivot(index="round", columns="run", values=["x", "value"])
    seen = table["x"].notna()
    running = seen[::-1].cummax()[::-1]
    kept = (seen | ~running).all(axis=1)
    # a run keeps its last value, also of a round at which others were not observed
    values = table["value"].where(running, table["value"].ffill())[kept]
    steps = table["x"][kept]
    running = running[kept]
    x = steps.iloc[0].mean() + steps.diff().mean(axis=1).fillna(0).cumsum()
    about = runs.groupby("run")[["lost", "draw"]].first()
    missing = (~running | ~np.isfinite(values)) & about["lost"]
    # where all are gone there is nothing to average
    values = values.mask(missing, runs["worst"].iloc[0]).mask(missing.all(axis=1), math.nan)
    values = pd.DataFrame(units_of(values.to_numpy(), about["draw"].to_numpy())[0], values.index)
    mean = values.mean(axis=1, skipna=False)
    spread = values.std(axis=1, ddof=1)
    low = np.maximum(mean - spread, values.min(axis=1))
    high = np.minimum(mean + spread, values.max(axis=1))
    return pd.DataFrame({"x": x, "mean": mean, "low": low, "high": high})


@_style()
def curves(
    frame: pd.DataFrame,
    x: Columns = "round",
    y: Columns = "test_accuracy",
    hue: Columns = "method",
    col: Columns = "task",
    *,
    log: bool | None = None,
    band: bool = True,
    lines: int = LINES,
    y_title: str = "",
    on_page: bool = False,
    order: Sequence[str] = (),
    paper: Paper = NO_NUMBERS,
) -> "matplotlib.figure.Figure":
    """Draws the mean of the runs with a band of one standard deviation, see `mean_curve`.

    Args:
        frame: a row for each observation, with the columns `run`, `draw`, `lost` and `round`, as
            `curves_frame` gives them; without `run` each line is one run.
        x: the column of the horizontal axis; of several, a panel each.
        y: the metric, a column too; of several, a panel each.
        hue: columns whose values divide a panel into lines. `metric` stands for `y`.
        col: columns whose values divide the figure into panels. `metric` and `axis` stand for `y`
            and `x`, which always divide it, unless `metric` is in `hue`.
        log: whether the vertical axis is logarithmic; by default for losses and gaps, where all
            that is drawn is positive.
        band: whether there are bands.
        lines: how many have a look of their own: the best at the end, if there are more.
        y_title: of the vertical axes.
        on_page: whether it is one of several on a page, of a width that a phone shows, with fewer
            points and without the names of lines.
        order: labels in the order in which they take their looks, before those of the figure.
        paper: the paper's numbers.
    """
    hues = listed(hue)
    cols = listed(col)
    cols += [name for name in ("metric", "axis") if name not in (*cols, *hues)]
    stated = frame.attrs.get("modes", {})
    directions = {name: stated.get(name) or mode_of(name) for name in listed(y)}
    observed = _melt(frame, listed(x), directions, {*hues, *cols})
    panels = _divide(observed, hues, cols, 3.6 if on_page else 0)
    most = 60 if on_page else 500  # points of a line
    looks = _looks_of(panels, order)
    for panel in panels:
        axes = panel.axes
        drawn = dict[str, pd.DataFrame]()
        numbers = list[float]()
        for label, rows in panel.rows.groupby("label", sort=False):
            curve = mean_curve(rows)
            if curve["mean"].isna().all():
                continue
            thin = np.unique(np.linspace(0, len(curve) - 1, most, dtype=int))
            drawn[label] = curve.iloc[thin]
            if printed := paper.get(_key(rows.iloc[0])):
                numbers.append(printed[0])
                axes.axhline(printed[0], color=looks[label].colour, linestyle=":", linewidth=1.1)
        if drawn:
            rows = pd.concat(drawn.values())
            shown = np.append(rows[_RANGE], numbers)
            if not _set_log(axes, panel.metric, shown, log) and is_percent(panel.metric):
                _zoom(axes, rows, numbers)
        best = _best(drawn, lines, directions[panel.metric])
        for position, (label, curve) in enumerate(drawn.items()):
            if label not in best:
                axes.plot(
                    curve["x"], curve["mean"], color=_LINE, linewidth=0.8, zorder=1, label="others"
                )
            else:
                _draw_line(axes, label, curve, looks[label], (position, len(drawn)), band)
    xs = [TITLES.get(column, column) for column in (panel.rows["axis"].iloc[0] for panel in panels)]
    _title_axes(panels, xs, [y_title or column_of(panel.metric).head for panel in panels])
    if on_page or (len(panels) == 1 and _name_ends(panels[0].axes)):
        return panels[0].axes.figure
    return _add_legend(panels)


_RANGE = ["mean", "low", "high"]


def _key(row: Any) -> tuple[str, str, str]:
    return row["metric"], row.get("task", ""), row.get("method", "")


class _Panel(NamedTuple):
    rows: pd.DataFrame
    axes: Any
    title: str

    @property
    def metric(self) -> str:
        return str(self.rows["metric"].iloc[0])


def listed(names: Columns) -> list[str]:
    """Returns a single name as a list of one."""
    return [names] if isinstance(names, str) else list(names)


def _melt(
    frame: pd.DataFrame, xs: Sequence[str], modes: Mapping[str, Mode | None], groups: set[str]
) -> pd.DataFrame:
    """Returns a row for each observation, axis and metric, of the runs that have it."""
    # without runs, rows are those of one
    if "run" not in frame:
        frame = frame.assign(run=0, draw=0, lost=False, round=range(len(frame)))
    wanted = {"task", "method", "audit", "run", "draw", "round", "lost"} | groups
    kept = frame[[name for name in frame.columns if name in wanted]]
    parts = []
    for x, (y, mode) in itertools.product(xs, modes.items()):
        if y not in frame:
            continue
        values = frame[y].astype(float) * scale_of(y)
        part = kept.assign(axis=x, metric=y, x=frame[x].astype(float), value=values, worst=math.nan)
        has_value = part.groupby("run")["value"].transform("count").gt(0)
        part = part[has_value]
        if mode is not None and part["lost"].any():
            tasks = part.groupby("task")["value"]
            part["worst"] = tasks.transform(lambda task, mode=mode: worst_of(task.to_numpy(), mode))
        parts.append(part.dropna(subset="x"))
    if not sum(map(len, parts)):
        names = ", ".join(modes) or "any metric"
        raise InvalidInput.found("figure", f"no values of {names}", "metrics that have some")
    return pd.concat(parts, ignore_index=True)


def _divide(
    rows: pd.DataFrame, hues: Sequence[str], cols: Sequence[str], width: float = 0, **options: Any
) -> list[_Panel]:
    """Makes a figure with a panel for each combination of values in columns, the first column
    slowest, and divides rows among them, with the labels of their lines.
    """
    import matplotlib.figure

    # a single panel where no column divides the figure
    rows = rows.assign(figure="")
    cols = [*cols, "figure"]
    orders = {name: rows[name].unique() for name in cols}
    parts = dict(iter(rows.groupby(cols, sort=False)))
    keys = [key for key in itertools.product(*orders.values()) if key in parts]
    differing = [name for name, order in orders.items() if len(order) > 1]
    columns = -(-len(keys) // -(-len(keys) // 4))
    if len(differing) > 1 and len(keys) == math.prod(map(len, orders.values())):
        columns = len(orders[differing[-1]])
    width = width or _WIDTHS.get(columns, _WIDTH)
    count = -(-len(keys) // columns)
    size = width, count * _HEIGHTS.get(columns, 1.6)
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    places = figure.subplots(count, columns, squeeze=False, **options)
    for empty in places.flat[len(keys) :]:
        empty.remove()
    named = [name for name in differing if name not in ("metric", "axis")]
    if len(keys) == 1:
        # a single panel still says which task it shows
        named = [name for name in cols if name == "task"]
    panels = []
    for key, axes in zip(keys, places.flat, strict=False):
        title = ", ".join(str(v) for c, v in zip(cols, key, strict=True) if c in named)
        axes.set_title(textwrap.fill(title, max(int(width / columns / _LETTER), 8)))
        panels.append(_Panel(_label_rows(parts[key], hues), axes, title))
    return panels


def _looks_of(panels: Sequence[_Panel], order: Sequence[str] = ()) -> dict[str, Look]:
    return choose_looks([*order, *(label for panel in panels for label in panel.rows["label"])])


def _label_rows(part: pd.DataFrame, hues: Sequence[str]) -> pd.DataFrame:
    """Returns rows with labels of their lines: the values in the columns that differ."""
    texts = {name: part[name].map(str) for name in hues}
    if "metric" in texts:
        texts["metric"] = texts["metric"].map(lambda metric: column_of(metric).title)
    varying = [text for text in texts.values() if text.nunique() > 1]
    if not varying:
        # a single line is that of its method, also where methods divide the panels
        is_one = "method" in part and part["method"].nunique() == 1
        varying = [part["method"] if is_one else texts[hues[0]]]
    return part.assign(label=varying[0].str.cat(varying[1:], sep=", "))


def _best(drawn: Mapping[str, pd.DataFrame], most: int, mode: Mode | None) -> list[str]:
    """Returns the labels that have a look of their own: all, or the best at the end."""
    ends = pd.Series({label: curve["mean"].iloc[-1] for label, curve in drawn.items()})
    return list(ends.sort_values(ascending=mode != "max", kind="stable").index[:most])


def _draw_line(
    axes: Any, label: str, curve: pd.DataFrame, look: Look, place: tuple[int, int], band: bool
) -> None:
    """Draws a curve with its band, and some six markers; those of lines on each other are apart."""
    if axes.get_yscale() == "log":
        # a logarithmic axis has no place for others
        positive = curve[["mean", "low"]].where(curve[["mean", "low"]] > 0)
        low = curve["low"].clip(positive.min().min())
        curve = curve.assign(mean=positive["mean"], low=low)
    position, count = place
    step = max(len(curve) // 6, min(count, len(curve)))
    options = look.options | {"markerfacecolor": THEME["ground"][0], "markeredgewidth": 1.0}
    options["markevery"] = list(range(step * position // count, len(curve), step))
    axes.plot(curve["x"], curve["mean"], label=label, **options)
    if band and curve["low"].notna().any():
        ends = curve["low"], curve["high"]
        axes.fill_between(curve["x"], *ends, color=look.colour, alpha=0.15, linewidth=0)


def _set_log(axes: Any, metric: str, shown: np.ndarray, log: bool | None) -> bool:
    """Makes a vertical axis logarithmic if all that it shows can be, and returns whether it is."""
    values = shown[np.isfinite(shown)]
    # below its minimum an objective is by rounding only: such a gap cannot be measured
    keeps = (log is True or metric == "objective_gap") and (values > 0).any()
    wanted = column_of(metric).logarithmic if log is None else log
    is_log = wanted and bool(keeps or (values > 0).all())
    if is_log:
        axes.set_yscale("log")
    return is_log


def _zoom(axes: Any, drawn: pd.DataFrame, numbers: Sequence[float]) -> None:
    """Lets a vertical axis begin where accuracies are, if their rise from chance, in the first
    tenth of the horizontal one, would take more than half of it.
    """
    start = drawn["x"].min()
    late = drawn[drawn["x"] >= start + 0.1 * (drawn["x"].max() - start)]
    whole, values = (np.append(rows[_RANGE], numbers) for rows in (drawn, late))
    values = values[np.isfinite(values)]
    if len(values) and np.nanmax(whole) - np.nanmin(whole) > 2 * np.ptp(values):
        pad = 0.06 * np.ptp(values) or 1.0
        axes.set_ylim(values.min() - pad, values.max() + pad)


def _title_axes(panels: Sequence[_Panel], xs: Sequence[str], ys: Sequence[str]) -> None:
    """Sets the titles of the axes, of equal ones at the edge of the figure, and plain ticks."""
    from matplotlib import ticker

    columns = panels[0].axes.get_gridspec().ncols
    letters = int(panels[0].axes.figure.get_figwidth() / columns / _LETTER)
    for name, titles in (("x", xs), ("y", ys)):
        for place, (panel, title) in enumerate(zip(panels, titles, strict=True)):
            axis = getattr(panel.axes, f"{name}axis")
            low, high = axis.get_view_interval()
            is_outer = place % columns == 0 if name == "y" else place >= len(panels) - columns
            if is_outer or len({*titles}) > 1:
                axis.set_label_text(textwrap.fill(title, min(letters, 28)))
            if axis.get_scale() == "log":
                # 1, 2, 5 within one and a half decades, else powers of ten
                steps = (1, 2, 5) if high / low < 30 else (1,)
                steps = (1, 1.5, 2, 3, 5) if high / low < 8 else steps
                axis.set_major_locator(ticker.LogLocator(subs=steps))
                axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_formatter(ticker.NullFormatter())
            elif name == "x" and title in TITLES.values():
                integer = title == TITLES["round"]
                axis.set_major_locator(ticker.MaxNLocator(4, integer=integer, min_n_ticks=1))
                if high >= 1e4:
                    axis.set_major_formatter(ticker.EngFormatter(sep=""))


def _name_ends(axes: Any) -> bool:
    """Writes the labels of lines at their ends, if they fit there."""
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    to_axes = (axes.transScale + axes.transLimits).transform
    places = []
    last = -math.inf
    ends = {line: to_axes(np.transpose(line.get_data()))[-1, 1] for line in named}
    for line, height in sorted(ends.items(), key=lambda item: item[1]):
        # a line of text is some 7 % of a panel
        last = max(height, last + 0.075)
        if not 0 <= height <= 1 or last - height > 0.12 or len(line.get_label()) > 14:
            return False
        places.append((line, last))
    for line, height in places:
        axes.text(
            1.02,
            height,
            line.get_label(),
            color=line.get_color(),
            transform=axes.transAxes,
            va="center",
        )
    return bool(places)


def _add_legend(panels: Sequence[_Panel]) -> "matplotlib.figure.Figure":
    """Adds the legend below the panels, which keep their size, and returns the figure."""
    figure = panels[0].axes.figure
    entries: dict[str, Any] = {}
    for panel in panels:
        handles, labels = panel.axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if entries:
        width = figure.get_figwidth()
        labels = [textwrap.fill(label, int((width - 0.7) / _LETTER)) for label in entries]
        longest = max(len(line) for label in labels for line in label.split("\n"))
        columns = min(max(1, int(width / (0.6 + _LETTER * longest))), len(labels))
        rows = -(-sum(label.count("\n") + 1 for label in labels) // columns)
        figure.set_figheight(figure.get_figheight() + 0.17 * rows + 0.05)
        figure.legend(list(entries.values()), labels, loc="outside lower center", ncols=columns)
    return figure


_DIAMOND = {
    "elinewidth": 0.9,
    "color": _QUIET,
    "marker": "D",
    "linestyle": "none",
    "markerfacecolor": THEME["ground"][0],
}


@_style()
def against_value(
    frame: pd.DataFrame,
    x: str,
    hue: Columns = "method",
    col: Columns = "metric",
    *,
    x_title: str = "",
    y_title: str = "",
    log: bool | None = None,
    order: Sequence[str] = (),
    paper: Paper = NO_NUMBERS,
) -> "matplotlib.figure.Figure":
    """Draws means over the runs against a value, evenly spaced, with bars of one standard
    deviation, beside the paper's numbers.

    Args:
        frame: a row for each run and metric, as `numbers_frame` gives them.
        x: the column of the value.
        hue, col, y_title, log, order, paper: as for `curves`.
        x_title: of the horizontal axes.
    """
    hues = listed(hue)
    cols = listed(col)
    cols += ["metric"] * ("metric" not in (*cols, *hues))
    values = sorted(frame[x].unique())
    panels = _divide(frame, hues, cols, sharex=True, sharey="row")
    # narrow panels have room for every second value
    step = 2 if len(values) > 4 < panels[0].axes.get_gridspec().ncols else 1
    looks = _looks_of(panels, order)
    for panel in panels:
        axes = panel.axes
        shown = list[float]()
        lines = panel.rows.groupby("label", sort=False)
        for position, (label, rows) in enumerate(lines):
            look = looks[label].options
            line = []
            # the paper's diamonds stand before the first line
            shift = 0.6 * (position + 1) / (len(lines) + 1) - 0.25
            for value, runs in rows.groupby(x):
                if runs.groupby(["task", "method"]).ngroups > 1:
                    allowed = f"what keeps the points of {label!r} apart"
                    raise InvalidInput.of("panels", panel.title, allowed)
                place = values.index(value)
                if printed := paper.get(_key(runs.iloc[0])):
                    mean, deviation = (*printed, 0.0)[:2]
                    shown += [mean - deviation, mean + deviation]
                    axes.errorbar(place - 0.25, mean, deviation, label=PUBLISHED, **_DIAMOND)
                numbers, _ = units_of(runs["value"].to_numpy(), runs["draw"].to_numpy())
                mean = numbers.mean()
                deviation = np.nan_to_num(deviation_of(numbers))
                shown += [mean - deviation, mean + deviation]
                line.append((place + shift, mean, deviation))
            # a panel of one method has its name as title
            named = {} if str(label) in panel.title else {"label": label}
            axes.errorbar(*np.transpose(line), elinewidth=0.9, **look, **named)
        axes.set_xticks(range(0, len(values), step), [f"{value:g}" for value in values[::step]])
        axes.set_xlim(-0.5, len(values) - 0.5)
        _set_log(axes, panel.metric, np.array(shown), log)
    heads = [y_title or column_of(panel.metric).head for panel in panels]
    _title_axes(panels, [x_title] * len(panels), heads)
    return _add_legend(panels)
