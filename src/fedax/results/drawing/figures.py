"""Charts as files for papers: PDF, PNG or SVG by Matplotlib (the extra `paper`)."""

import itertools
import math
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import FedaxError, InvalidInput
from fedax.errors import install_hint
from fedax.results.drawing.charts import PUBLISHED, Chart, Panel, Series
from fedax.results.drawing.styles import COLOURS, colour_of, dash_of, marker_of, styles
from fedax.results.record import Record, by_draw, by_label, by_task, weights_at
from fedax.utils.files import portable, write, writing

FORMATS = ("pdf", "png", "svg")
_COLUMN, _TEXT = 3.4, 7.0  # inches: the width of a column and of the text of a paper
_TITLE, _LABEL, _TICK, _NOTE = 8.5, 8, 7.5, 6.5  # points
_INK = "0.25"
_LINES = 2  # of hyperparameters above a panel; more of them are in tables only
_LETTERS = 25  # of a line beside or inside a panel
_SAMPLE = 0.6  # inches: the line of an entry of the legend, and the gaps beside it
_QUARTERS = (0.25, 0.5, 0.75, 1.0)


def save_charts(
    charts: Sequence[Chart], folder: Path, formats: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Draws charts, each as `<name>.<format>`, by names that every system can hold beside each
    other.

    Args:
        charts: the charts.
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
        base_name = portable(chart.name)
        # two names that differ in their case only would be one file on some systems
        candidates = (base_name if i == 1 else f"{base_name}-{i}" for i in itertools.count(1))
        name = next(name for name in candidates if name.casefold() not in taken)
        taken.add(name.casefold())
        figure = make(figsize=_figure_size(chart), layout="constrained")
        # rows of panels, the last one perhaps not full
        row_count = -(-len(chart.panels) // chart.columns)
        panels: Any = figure.subplots(row_count, chart.columns, squeeze=False)
        for index, panel in enumerate(chart.panels):
            _draw(panels.flat[index], panel, chart, index)
        # the places of the last row that stay empty
        for panel in list(panels.flat)[len(chart.panels) :]:
            panel.remove()
        files += _finish(figure, _legend(chart), folder / name, formats, chart.caption)
    return files


def save_chart(chart: Chart, path: Path) -> Path:
    """Draws one chart into the file of this name, whose ending is the format.

    Raises:
        FedaxError: Matplotlib is not installed.
        InvalidInput: an unknown format.
    """
    with writing(path), tempfile.TemporaryDirectory() as folder:
        (drawn,) = save_charts([chart], Path(folder), [path.suffix.removeprefix(".")])
        path.parent.mkdir(parents=True, exist_ok=True)
        # drawn elsewhere first: the file is whole, or as it was
        write(path, drawn.read_bytes())
    return path


def _figure_size(chart: Chart) -> tuple[float, float]:
    """Returns the size of a figure in inches.

    It is as wide as a column or the text of a paper, so that its type keeps its size there.
    """
    wide = {1: _COLUMN, 2: 1.5 * _COLUMN}.get(chart.columns, _TEXT)
    rows = max((len(panel.y.ticks) for panel in chart.panels), default=0)
    # named rows need as much height as their names have lines
    lines = max(
        (sum(1 + text.count("\n") for _, text in panel.y.ticks) for panel in chart.panels),
        default=0,
    )
    high = (
        0.7 + 0.3 * max(rows, 0.62 * lines)
        if rows
        else 2.2
        if chart.columns < 3
        else 1.9
        if chart.columns == 3
        else 1.55
    )
    return wide, high * -(-len(chart.panels) // chart.columns)


def save_weights(
    records: Sequence[Record], folder: Path, formats: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Draws the weights of the clients, where they were observed, as `client_weight.<format>`.

    Against the shares of the examples, after each quarter of the observations, on logarithmic axes
    unless a weight or share is not positive; means of the runs on the same data. Arguments, returns
    and errors are those of `save_charts`.
    """
    make = _figure_maker(formats)
    # by task, the runs
    weighed = {
        title: runs
        for title, runs in by_task(records).items()
        if any("client_weight" in run.metrics for run in runs)
    }
    if not weighed:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    figure = make(figsize=(_TEXT, 1.9 * len(weighed)), layout="constrained")
    panels = figure.subplots(
        len(weighed), len(_QUARTERS), squeeze=False, sharex="row", sharey="row"
    )
    for row, (title, runs) in zip(panels, weighed.items(), strict=True):
        for panel, fraction in zip(row, _QUARTERS, strict=True):
            _draw_scatter(panel, title, runs, fraction)
        row[0].set_ylabel("weight of the client", fontsize=_LABEL)
        # the panels of a row share their axes, shape (points, 2)
        points = np.concatenate([dots.get_offsets() for panel in row for dots in panel.collections])
        for name, values in zip("xy", points.T, strict=True):
            if (values > 0).all():
                getattr(row[0], f"set_{name}scale")("log")
    legends = [panel.get_legend_handles_labels() for panel in panels.flat]
    # one entry for each label, also if several panels show it
    entries = {
        label: handle
        for handles, labels in legends
        for handle, label in zip(handles, labels, strict=True)
    }
    return _finish(figure, entries, folder / "client_weight", formats)


def _figure_maker(formats: Sequence[str]) -> Any:
    """Returns Matplotlib's class of figures after a check of the formats."""
    for name in formats:
        if name not in FORMATS:
            raise InvalidInput.of("format", name, "one of " + ", ".join(FORMATS))
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise FedaxError(f"Figures need Matplotlib. Run: {install_hint('paper')}") from error
    return Figure


def _finish(
    figure: Any, entries: dict[str, Any], path: Path, formats: Sequence[str], caption: str = ""
) -> list[Path]:
    """Adds the legend and writes the files, with the caption inside."""
    _add_legend(figure, entries)
    files = [path.parent / f"{path.name}.{name}" for name in formats]
    from matplotlib import rc_context

    for name, file in zip(formats, files, strict=True):
        # no date inside: the same runs give the same file
        undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[name]
        description = {{"pdf": "Subject"}.get(name, "Description"): caption} if caption else {}
        # fonts as TrueType: IEEE and ACM refuse Type 3
        with writing(file), rc_context({"pdf.fonttype": 42}):
            figure.savefig(file, dpi=200, metadata=undated | description)
    return files


def _add_legend(figure: Any, entries: dict[str, Any]) -> None:
    """Adds the legend below the panels, which keep their size; without series there is none."""
    if not entries:
        return
    # a line of an entry that has the whole width
    longest = figure.get_figwidth() - _SAMPLE
    labels = [_wrap_label(label, longest) for label in entries]
    widest = max(_label_width(line) for label in labels for line in label)
    # as many columns as fit into the width, then all rows equally full
    rows = -(-len(labels) // max(1, int(figure.get_figwidth() / (_SAMPLE + widest))))
    columns = -(-len(labels) // rows)
    # Matplotlib fills one column after the other, and the first ones have one entry more
    lines = np.array_split([len(label) for label in labels], columns)
    height = max(float((0.05 + 0.13 * column).sum()) for column in lines)
    figure.set_figheight(figure.get_figheight() + height)
    names = [f"{i}" for i in range(len(labels))]
    legend = figure.legend(
        list(entries.values()),
        names,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=_LABEL,
    )
    # set afterwards: Matplotlib leaves out entries whose label begins with an underscore
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(_literal("\n".join(label)))


def _wrap_label(label: str, inches: float) -> list[str]:
    """Returns the lines of a label that fit into a width."""
    letters = max(map(len, [label, " "]))
    while True:
        lines = textwrap.wrap(label, letters) or [""]
        widest = max(map(_label_width, lines))
        if widest <= inches or letters == 1:
            return lines
        # the next length that might fit
        letters = max(min(letters - 1, int(letters * inches / widest)), 1)


def _label_width(line: str) -> float:
    """Returns the width of a line in inches, in the type of legends."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), _literal(line), size=_LABEL).get_extents().width) / 72


def _literal(text: str) -> str:
    """Returns a text that Matplotlib shows as it is: between two dollar signs it would read a
    formula.
    """
    return text.replace("$", r"\$")


def caption_in(png: bytes) -> str:
    """Returns the caption that `save_charts` has written into a PNG file, or nothing."""
    offset = 8  # behind the signature; chunks are a length, a kind, data and a checksum
    while offset + 12 <= len(png):
        length = int.from_bytes(png[offset : offset + 4])
        kind, data = png[offset + 4 : offset + 8], png[offset + 8 : offset + 8 + length]
        if kind in (b"tEXt", b"iTXt") and data.startswith(b"Description\0"):
            text = data.removeprefix(b"Description\0")
            # iTXt: not compressed, no language
            return (
                text.decode("latin-1") if kind == b"tEXt" else text.removeprefix(bytes(4)).decode()
            )
        # four bytes each of length, kind and checksum
        offset += length + 12
    return ""


def _style_options(series: Series) -> dict[str, Any]:
    """Returns colour, dash and marker of a series as Matplotlib's options."""
    if series.kind == "published":
        shape = {"marker": "D", "markersize": 4, "markerfacecolor": "white", "markeredgewidth": 0.9}
        return {"color": _INK, "linestyle": ":", "linewidth": 0.9} | shape
    if series.kind in ("paper", "ours", "runs", "beyond"):
        folder_style = series.style % 8 if series.kind == "ours" else 0  # folders beside each other
        colour = _INK if series.kind == "paper" else COLOURS[folder_style]
        size = {"paper": 5, "ours": 5, "runs": 2.4, "beyond": 5}[series.kind]
        hollow = {"markerfacecolor": "white"} if series.kind == "paper" else {}
        marker = {"paper": "D", "beyond": "<"}.get(series.kind, "os^*P8Xv"[folder_style])
        shape = {"marker": marker, "markersize": size, "linestyle": "none"}
        return {"color": colour, "alpha": 0.45 if series.kind == "runs" else 1.0} | hollow | shape
    options = {"color": colour_of(series.style), "marker": marker_of(series.style)}
    if series.kind == "dots":
        return options | {
            "linestyle": "none",
            "markersize": 3.2,
            "alpha": 0.75,
            "markeredgewidth": 0,
        }
    face = (
        {"markersize": 4.2}
        if series.kind == "points"
        else {"markerfacecolor": "white", "markeredgewidth": 1.0, "markersize": 3.8}
    )
    return options | {"linestyle": dash_of(series.style), "linewidth": 1.2} | face


def _legend(chart: Chart) -> dict[str, Any]:
    """Returns the legend's samples by their texts.

    Our series share one sample where every panel is about the method that its title names.
    """
    entries = {text: _legend_sample(series) for text, series in chart.legend().items()}
    # of each panel, all series but the paper's
    ours = [
        [series for series in panel.series if series.kind != "published"] for panel in chart.panels
    ]
    is_titled = all(
        len(panel_series) == 1 and panel_series[0].label in panel.title
        for panel_series, panel in zip(ours, chart.panels, strict=True)
    )
    if PUBLISHED not in entries or not is_titled:
        return entries
    from matplotlib.lines import Line2D

    sample = Line2D([], [], color=_INK, marker="o", markersize=4.2, linewidth=1.2)
    return {"ours, ± standard deviation": sample, PUBLISHED: entries[PUBLISHED]}


def _legend_sample(series: Series) -> Any:
    """Returns a sample of a series for the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **_style_options(series))


def _draw(axes: Any, panel: Panel, chart: Chart, index: int) -> None:
    """Draws the panel with an index of its chart: series, frame, scales, the paper's numbers,
    settings.
    """
    for series in panel.series:
        _draw_series(axes, series, panel)
    _draw_frame(axes, panel, chart, index)
    _set_scales(axes, panel)
    _draw_marks(axes, panel)
    if texts := _panel_settings(panel, chart):
        axes.text(
            0.5,
            1.02,
            _literal("\n".join(texts)),
            transform=axes.transAxes,
            ha="center",
            va="bottom",
            fontsize=_NOTE,
            color=_INK,
        )


def _draw_series(axes: Any, series: Series, panel: Panel) -> None:
    """Draws a series with its intervals: error bars of single values, a band of a curve."""
    # intervals of `paper` and `ours` lie along x, those of other kinds along y
    style, is_horizontal = _style_options(series), series.kind not in ("points", "published")
    if series.kind in ("paper", "ours", "points", "published") and len(series.low):
        middle = series.x if is_horizontal else series.y
        # shape (2, points): the lengths below and above the mean
        error_lengths = np.abs(np.stack([middle - series.low, series.high - middle]))
        bars = {"xerr": error_lengths} if is_horizontal else {"yerr": error_lengths}
        axes.errorbar(series.x, series.y, **bars, **style, capsize=2, elinewidth=0.9)
    else:
        every = {"markevery": list(series.marked)} if series.kind == "curve" else {}
        axes.plot(series.x, series.y, **style, **every, clip_on=series.kind != "beyond")
    if series.kind == "curve" and len(series.low):
        axes.fill_between(
            series.x, series.low, series.high, color=style["color"], alpha=0.15, linewidth=0
        )
    for x, y, text in zip(series.x, series.y, series.texts, strict=False):
        # the text goes to the side with more room
        is_left = x < ((panel.x.low or 0.0) + (panel.x.high or 0.0)) / 2
        shift = {
            "xytext": (7 if is_left else -7, 0),
            "textcoords": "offset points",
            "ha": "left" if is_left else "right",
        }
        # the interval may lie behind the text
        background = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        axes.annotate(
            _literal(text),
            (x, y),
            va="center",
            fontsize=_NOTE,
            color=COLOURS[0],
            bbox=background,
            **shift,
        )


def _draw_frame(axes: Any, panel: Panel, chart: Chart, index: int) -> None:
    """Sets the title, and the names of the axes where the panels beside and below have others."""
    # lines of hyperparameters above the panel push the title up
    lifted = 1 + len(_panel_settings(panel, chart))
    row, title = _row_and_title(chart, index)
    # letters that fit into the width of a panel: 72 points an inch, 0.62 of the size each
    letters = int(72 * _figure_size(chart)[0] / chart.columns / (0.62 * _TITLE))
    axes.set_title(
        _literal(textwrap.fill(title, letters)),
        fontsize=_TITLE,
        pad=3 + 1.2 * _NOTE * (lifted - 1),
    )
    axes.tick_params(labelsize=_TICK, length=2.5, width=0.6)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_linewidth(0.6)
    # a name stands only where the neighbour does not already have it
    panel_below = (
        chart.panels[index + chart.columns] if index + chart.columns < len(chart.panels) else None
    )
    first = index % chart.columns == 0
    if panel_below is None or panel_below.x.title != panel.x.title:
        axes.set_xlabel(_literal(textwrap.fill(panel.x.title, letters)), fontsize=_LABEL)
    if first or chart.panels[index - 1].y.title != panel.y.title:
        title = textwrap.fill(panel.y.title, _LETTERS)
        axes.set_ylabel(_literal(f"{row}\n{title}" if row else title), fontsize=_LABEL)
    # rows of equal names are written at the first column only
    has_named_rows = panel.y.ticks and len({other.y.ticks for other in chart.panels}) == 1
    if not first and (has_named_rows or chart.shared):
        axes.tick_params(labelleft=False)


def _row_and_title(chart: Chart, index: int) -> tuple[str, str]:
    """Returns the name of a panel's row, for its vertical axis, and its title.

    In a grid of panels the title is the name of the column, above the first row only.
    """
    # (row, column) of each panel whose title is "row, column"
    titles = [panel.title.partition(", ")[::2] for panel in chart.panels]
    rows = [titles[i : i + chart.columns] for i in range(0, len(titles), chart.columns)]
    columns = [second for _, second in rows[0]]
    # a grid: the panels of the first row name different columns
    is_grid = all(columns) and len(set(columns)) == chart.columns > 1
    if not is_grid or any(
        len({first for first, _ in row}) > 1 or [second for _, second in row] != columns
        for row in rows
    ):
        return "", chart.panels[index].title
    return rows[index // chart.columns][0][
        0
    ] if index % chart.columns == 0 else "", "" if index >= chart.columns else columns[index]


def _set_scales(axes: Any, panel: Panel) -> None:
    """Sets scales, ticks and limits of both axes."""
    for name, axis in (("x", panel.x), ("y", panel.y)):
        if axis.log:
            getattr(axes, f"set_{name}scale")("log")
            _set_log_ticks(getattr(axes, f"{name}axis"))
        if axis.ticks:
            positions, names = zip(*axis.ticks, strict=True)
            getattr(axes, f"set_{name}ticks")(positions, [_literal(text) for text in names])
            getattr(axes, f"{name}axis").set_tick_params(which="minor", length=0)
        if axis.low is not None:
            getattr(axes, f"set_{name}lim")(axis.low, axis.high)
    if panel.x.title.endswith("rounds") and not panel.x.log:
        low, high = axes.get_xlim()
        if high - low < 1:  # of the initial model alone
            axes.set_xlim(low - 0.5, high + 0.5)
        axes.locator_params(axis="x", integer=True)
    # large numbers get a letter, such as 20k, and fewer ticks
    if not panel.x.ticks and not panel.x.log and axes.get_xlim()[1] >= 1e4:
        from matplotlib.ticker import EngFormatter

        axes.locator_params(axis="x", nbins=4)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _panel_settings(panel: Panel, chart: Chart) -> list[str]:
    """Returns the hyperparameters that only this panel has, one line for all series with equal
    ones.
    """
    texts: dict[str, list[str]] = {}
    for series, text in [] if panel.y.ticks else chart.panel_settings(panel):
        texts.setdefault(text, []).append(series.label)
    lines = [f"{', '.join(labels)}: {text}" for text, labels in texts.items() if text != "-"]
    return lines if len(lines) <= _LINES and max(map(len, lines), default=0) <= 2 * _LETTERS else []


def _set_log_ticks(axis: Any) -> None:
    """Sets plain ticks on a logarithmic axis: 1, 2, 5 within three decades, else powers of ten.

    A horizontal axis has room for 1, 2, 5 within one and a half decades.
    """
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_data_interval()
    if axis.axis_name == "x":
        low = axis.get_minpos()  # curves begin at 0, which a logarithmic axis does not show
    decades = math.log10(high / low) if 0 < low < high else 0.0
    if decades < 3:
        crowded = axis.axis_name == "x" and decades > 1.5
        axis.set_major_locator(LogLocator(subs=(1,) if crowded else (1, 2, 5)))
        short = EngFormatter(sep="") if axis.axis_name == "x" and high >= 1e4 else None
        axis.set_major_formatter(short or FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _draw_marks(axes: Any, panel: Panel) -> None:
    """Draws the paper's numbers: dotted lines of the methods, and lines with their text."""
    background = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.8}
    for mark in panel.marks:
        if mark.style is not None:
            axes.axhline(mark.value, color=colour_of(mark.style), linestyle=":", linewidth=1.1)
            continue
        axes.axhline(mark.value, color=_INK, linestyle=(0, (5, 3)), linewidth=0.9)
        alignment = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom"}
        text = _literal(textwrap.fill(mark.text, _LETTERS))
        axes.text(0.99, mark.value, text, **alignment, fontsize=_NOTE, color=_INK, bbox=background)


def _draw_scatter(panel: Any, title: str, records: Sequence[Record], fraction: float) -> None:
    """Draws the clients' weights against their shares of the examples, after a fraction of the
    observations.
    """
    # the round of the last label; 0 if nothing was observed
    completed = 0
    style_numbers = styles(record.label for record in records)
    for label, runs in by_label(records).items():
        # draws of which all runs have weights: means over some of them would mix data
        draws = [
            draw_runs
            for draw_runs in by_draw(runs)
            if all("client_weight" in run.metrics for run in draw_runs)
        ]
        if not draws:
            continue
        # the longest run says which observation the fraction means; others may have ended
        longest = max((run.rounds for draw_runs in draws for run in draw_runs), key=len)
        observation = round(fraction * (len(longest) - 1))
        completed = longest[observation]
        shares, weights = (
            np.concatenate(values)
            for values in zip(
                *(weights_at(draw_runs, observation) for draw_runs in draws), strict=True
            )
        )
        panel.scatter(
            shares,
            weights,
            label=label,
            color=colour_of(style_numbers[label]),
            marker=marker_of(style_numbers[label]),
            s=9,
            alpha=0.75,
            linewidths=0,
        )
        # on this line a client's weight is its share of the examples
        limits = [shares.min(), shares.max()]
        panel.plot(limits, limits, color="0.5", linestyle=":", linewidth=1)
    # a panel has a quarter of the width of the text
    letters = int(72 * _TEXT / len(_QUARTERS) / (0.62 * _TITLE))
    heading = textwrap.fill(f"{title}, round {completed}", letters)
    panel.set_title(_literal(heading), fontsize=_TITLE)
    panel.set_xlabel("share of the examples", fontsize=_LABEL)
    panel.tick_params(labelsize=_TICK)
    panel.grid(alpha=0.3)
