"""Charts as files for papers: PDF, PNG or SVG by Matplotlib (the extra `paper`)."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import FedaxError, InvalidInput
from fedax.files import portable, writing
from fedax.report.charts import Chart, Panel, Series
from fedax.report.record import Record, by_draw, by_label, by_task, weights_at

FORMATS = ("pdf", "png", "svg")
_COLOURS = ("#0072b2", "#d14900", "#00805c", "#b0388f", "#8f6a00", "#5b4fd1", "#646b73", "#a11d33")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_QUARTERS = (0.25, 0.5, 0.75, 1.0)


def save_charts(charts: Sequence[Chart], folder: Path, formats: Sequence[str] = ("pdf", "png")) -> list[Path]:
    """Draws charts, each as `<name>.<format>`, by names that every system can hold beside each other.

    Args:
        charts: what is drawn.
        folder: where they are written; made if it does not exist.
        formats: of `FORMATS`.

    Returns:
        The files.

    Raises:
        FedaxError: Matplotlib is not installed.
        InvalidInput: an unknown format.
    """
    make, files, taken = _figure_maker(formats), [], set[str]()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        plain = portable(chart.name)
        named = (plain if i == 1 else f"{plain}-{i}" for i in itertools.count(1))
        name = next(name for name in named if name.casefold() not in taken)
        taken.add(name.casefold())
        down = -(-len(chart.panels) // chart.columns)
        rows = max(len(panel.y.ticks) for panel in chart.panels)
        # named rows need as much height as their names have lines
        lines = max((sum(1 + text.count("\n") for _, text in panel.y.ticks) for panel in chart.panels), default=0)
        high = 0.7 + 0.3 * max(rows, 0.62 * lines) if rows else 2.6
        figure = make(figsize=(max(4.2, 3.3 * chart.columns), high * down), layout="constrained")
        panels: Any = figure.subplots(down, chart.columns, squeeze=False)
        for place, panel in enumerate(chart.panels):
            _draw(panels.flat[place], panel, chart, first=place % chart.columns == 0)
        for panel in list(panels.flat)[len(chart.panels) :]:
            panel.remove()
        kinds = {series.kind for panel in chart.panels for series in panel.series}
        entries = {text: _key(series) for text, series in chart.legend().items()}
        if "curve" in kinds and any(mark.style is not None for panel in chart.panels for mark in panel.marks):
            entries["the paper's number"] = _diamond("0.3")
        files += _finish(figure, entries, folder / name, formats)
    return files


def save_weights(records: Sequence[Record], folder: Path, formats: Sequence[str] = ("pdf", "png")) -> list[Path]:
    """The weights of the clients, where they were watched, as `client_weight.<format>`.

    Against the shares of the examples, after each quarter of the observations, on logarithmic axes; means of the runs on the same
    data. Arguments, returns and errors are those of `save_charts`.
    """
    make = _figure_maker(formats)
    weighed = {
        title: runs for title, runs in by_task(records).items() if any("client_weight" in run.metrics for run in runs)
    }
    if not weighed:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    figure = make(figsize=(3.3 * len(_QUARTERS), 2.6 * len(weighed)), layout="constrained")
    panels = figure.subplots(len(weighed), len(_QUARTERS), squeeze=False, sharex="row", sharey="row")
    for row, (title, runs) in zip(panels, weighed.items(), strict=True):
        for panel, part in zip(row, _QUARTERS, strict=True):
            _scatter(panel, title, runs, part)
        row[0].set_ylabel("weight of the client", fontsize=8)
    shown = [panel.get_legend_handles_labels() for panel in panels.flat]
    entries = {label: handle for handles, labels in shown for handle, label in zip(handles, labels, strict=True)}
    return _finish(figure, entries, folder / "client_weight", formats)


def _figure_maker(formats: Sequence[str]) -> Any:
    """Matplotlib's class of figures, for known formats."""
    for name in formats:
        if name not in FORMATS:
            raise InvalidInput.of("format", name, "one of " + ", ".join(FORMATS))
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise FedaxError("Figures need Matplotlib: pip install 'fedax[paper]'.") from error
    return Figure


def _finish(figure: Any, entries: dict[str, Any], path: Path, formats: Sequence[str]) -> list[Path]:
    """Adds the legend and writes the files."""
    labels = list(entries)
    inches = 0.6 + 0.068 * max(len(label) for label in labels)  # of an entry: its line, and eight-point letters
    columns = max(1, min(len(labels), int(figure.get_figwidth() / inches)))
    figure.set_figheight(figure.get_figheight() + 0.18 * -(-len(labels) // columns))  # the panels keep their size
    figure.legend(list(entries.values()), labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    files = [path.parent / f"{path.name}.{name}" for name in formats]
    for name, file in zip(formats, files, strict=True):
        # no date inside: the same runs give the same file
        undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[name]
        with writing(file):
            figure.savefig(file, dpi=200, metadata=undated)
    return files


def _style(series: Series) -> dict[str, Any]:
    """Colour, dash and marker of a series, as Matplotlib calls them."""
    if series.kind in ("held", "failed"):
        good = series.kind == "held"
        shape = {"marker": "s" if good else "X", "markersize": 4.5, "markeredgewidth": 0}
        return {"color": _COLOURS[2 if good else 7], "linestyle": "none"} | shape
    if series.kind in ("paper", "ours", "runs", "beyond"):
        several = series.style % 8 if series.kind == "ours" else 0  # folders beside each other
        colour = "0.25" if series.kind == "paper" else _COLOURS[several]
        size = {"paper": 5.5, "ours": 5.5, "runs": 2.6, "beyond": 5.5}[series.kind]
        hollow = {"markerfacecolor": "white"} if series.kind == "paper" else {}
        marker = {"paper": "D", "beyond": "<"}.get(series.kind, "os^*P8Xv"[several])
        shape = {"marker": marker, "markersize": size, "linestyle": "none"}
        return {"color": colour, "alpha": 0.45 if series.kind == "runs" else 1.0} | hollow | shape
    colour, again = _COLOURS[series.style % 8], series.style // 8  # colours that come again have other dashes and markers
    dash, marker = _DASHES[(series.style + again) % 4], _MARKERS[(series.style + 3 * again) % 8]
    face = {"markerfacecolor": "white", "markeredgewidth": 1.0, "markersize": 4.2}
    return {"color": colour, "linestyle": dash, "marker": marker, "linewidth": 1.4} | face


def _key(series: Series) -> Any:
    """A sample for the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **_style(series))


def _diamond(colour: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker="D", markerfacecolor="none", linestyle="none", markersize=5)


def _draw(axes: Any, panel: Panel, chart: Chart, first: bool) -> None:
    for series in panel.series:
        style = _style(series)
        if series.kind in ("paper", "ours", "points") and len(series.low):
            across = series.kind != "points"
            ends = np.abs(
                np.stack([(series.x if across else series.y) - series.low, series.high - (series.x if across else series.y)])
            )
            bars = {"xerr": ends} if across else {"yerr": ends}
            axes.errorbar(series.x, series.y, **bars, **style, capsize=2.5, elinewidth=1.0)
        else:
            every = {"markevery": list(series.marked)} if series.kind == "curve" else {}
            axes.plot(series.x, series.y, **style, **every, clip_on=series.kind != "beyond")
        if series.kind == "curve" and len(series.low):
            axes.fill_between(series.x, series.low, series.high, color=style["color"], alpha=0.15, linewidth=0)
        for x, y, text in zip(series.x, series.y, series.texts, strict=False):
            left = x < ((panel.x.low or 0.0) + (panel.x.high or 0.0)) / 2
            place = {"xytext": (7 if left else -7, 0), "textcoords": "offset points", "ha": "left" if left else "right"}
            ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # its own interval may lie behind it
            axes.annotate(text, (x, y), va="center", fontsize=7, color=_COLOURS[0], bbox=ground, **place)
    axes.set_title(panel.title, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    for name, axis in (("x", panel.x), ("y", panel.y)):
        getattr(axes, f"set_{name}label")(axis.title, fontsize=8)
        if axis.log:
            getattr(axes, f"set_{name}scale")("log")
            _spaced(getattr(axes, f"{name}axis"))
        if axis.ticks:
            places, names = zip(*axis.ticks, strict=True)
            getattr(axes, f"set_{name}ticks")(places, names)
            getattr(axes, f"{name}axis").set_tick_params(which="minor", length=0)
        if axis.low is not None:
            getattr(axes, f"set_{name}lim")(axis.low, axis.high)
    if panel.x.title.endswith("rounds") and not panel.x.log:
        axes.locator_params(axis="x", integer=True)
    if not panel.x.ticks and not panel.x.log and axes.get_xlim()[1] >= 1e4:
        from matplotlib.ticker import EngFormatter

        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.y.ticks and not first and len({panel.y.ticks for panel in chart.panels}) == 1:
        axes.tick_params(labelleft=False)
    _mark(axes, panel)
    own = chart.own(panel)
    if own and not panel.y.ticks:
        from matplotlib.legend_handler import HandlerTuple

        texts: dict[
            str, list[Series]
        ] = {}  # series with the same hyperparameters share an entry, which hides less of the curves
        for series, text in own:
            texts.setdefault(text, []).append(series)
        keys = [tuple(_key(series) for series in group) for group in texts.values()]
        names = [f"{group[0].label}: {text}" if len(group) == 1 else text for text, group in texts.items()]
        shape = {"handlelength": 2.2 * max(map(len, keys)), "handler_map": {tuple: HandlerTuple(ndivide=None)}}
        box = axes.legend(keys, names, fontsize=6.5, framealpha=0.75, borderpad=0.3, labelspacing=0.3, **shape)
        box.set_zorder(5)


def _spaced(axis: Any) -> None:
    """Plain numbers on a logarithmic axis: 1, 2, 5 within few decades, else powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_data_interval()
    decades = math.log10(high / low) if 0 < low < high else 0.0
    if decades < 3:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _mark(axes: Any, panel: Panel) -> None:
    """The paper's numbers: diamonds at the right end, lines with their text."""
    ground = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.8}
    for mark in panel.marks:
        if mark.style is None:
            axes.axhline(mark.value, color="0.25", linestyle=(0, (5, 3)), linewidth=0.9)
            place = axes.get_yaxis_transform()
            axes.text(
                0.99,
                mark.value,
                mark.text,
                transform=place,
                ha="right",
                va="bottom",
                fontsize=6.5,
                color="0.25",
                bbox=ground,
            )
        else:
            colour = _COLOURS[mark.style % 8]
            place = axes.get_yaxis_transform()
            shape = {"marker": "D", "markersize": 5, "markerfacecolor": "white", "markeredgewidth": 1.4, "linestyle": "none"}
            axes.plot([1.0], [mark.value], transform=place, color=colour, clip_on=False, zorder=6, **shape)


def _scatter(panel: Any, title: str, records: Sequence[Record], part: float) -> None:
    """The clients' weights against their shares of the examples, after a part of the observations."""
    done = 0
    for i, (label, runs) in enumerate(by_label(records).items()):
        drawn = [own for own in by_draw(runs) if all("client_weight" in run.metrics for run in own)]
        if not drawn:
            continue
        at = round(part * (min(len(run.rounds) for own in drawn for run in own) - 1))
        done = drawn[0][0].rounds[at]
        shares, weights = (np.concatenate(values) for values in zip(*(weights_at(own, at) for own in drawn), strict=True))
        panel.scatter(shares, weights, label=label, color=_COLOURS[i % 8], s=9, alpha=0.75, linewidths=0)
        ends = [shares.min(), shares.max()]
        panel.plot(ends, ends, color="0.5", linestyle=":", linewidth=1)
    panel.set_title(f"{title}, round {done}", fontsize=9)
    panel.set_xlabel("share of the examples", fontsize=8)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
