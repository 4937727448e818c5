"""Figures for papers: PDF, PNG or SVG by Matplotlib (the extra `paper`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import FedaxError, InvalidInput
from fedax.report.record import Record, band, by_draw, by_label, by_task, weights_at
from fedax.report.summary import Column, columns_of

FORMATS = ("pdf", "png", "svg")
AXES = {
    "rounds": "communication rounds",
    "bits": "bits sent, both directions",
    "gradients": "minibatch gradients of a client",
    "seconds": "seconds",
}
_COLOURS = ("#0072b2", "#d14900", "#00805c", "#b0388f", "#8f6a00", "#5b4fd1", "#646b73", "#a11d33")
_DASHES = ("-", "--", ":", "-.")
_QUARTERS = (0.25, 0.5, 0.75, 1.0)


def save_figures(
    records: Sequence[Record], folder: Path, formats: Sequence[str] = ("pdf", "png"), against: str = "rounds"
) -> list[Path]:
    """One figure per metric, with a panel for every task; bands are one standard deviation over the runs, within their
    range.

    The weights of the clients, where they were watched, are `client_weight.<format>`: against the shares of the examples, after
    each quarter of the observations, on logarithmic axes; means of the runs on the same data.

    Args:
        records: the runs.
        folder: where they are written, as `<metric>.<format>`; made if it does not exist.
        formats: of `FORMATS`.
        against: the horizontal axis, one of `AXES`.

    Returns:
        The files.

    Raises:
        FedaxError: Matplotlib is not installed.
        InvalidInput: an unknown format or axis.
    """
    for name in formats:
        if name not in FORMATS:
            raise InvalidInput.of("format", name, "one of " + ", ".join(FORMATS))
    if against not in AXES:
        raise InvalidInput.of("against", against, "one of " + ", ".join(AXES))
    if against == "gradients" and any(run.gradients is None for run in records):
        raise InvalidInput.of("against", against, "another axis, as some of these runs have no record of their gradients")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise FedaxError("Figures need Matplotlib: pip install 'fedax[paper]'.") from error
    folder.mkdir(parents=True, exist_ok=True)
    tasks, files = by_task(records), []
    for column in (column for column in columns_of(records) if column.chart):
        down = -(-len(tasks) // 4)
        across = -(-len(tasks) // down)
        figure = Figure(figsize=(max(4.2, 3.3 * across), 2.6 * down), layout="constrained")
        panels: Any = figure.subplots(down, across, squeeze=False)
        for panel, (title, runs) in zip(panels.flat, tasks.items(), strict=False):
            _draw(panel, title, runs, column, against)
            panel.set_ylabel(column.title + (" (%)" if column.percent else ""), fontsize=8)
        for panel in list(panels.flat)[len(tasks) :]:
            panel.remove()
        files += _finish(figure, panels, folder / column.metric, formats)
    weighed = {title: runs for title, runs in tasks.items() if any("client_weight" in run.metrics for run in runs)}
    if weighed:
        figure = Figure(figsize=(3.3 * len(_QUARTERS), 2.6 * len(weighed)), layout="constrained")
        panels = figure.subplots(len(weighed), len(_QUARTERS), squeeze=False, sharex="row", sharey="row")
        for row, (title, runs) in zip(panels, weighed.items(), strict=True):
            for panel, part in zip(row, _QUARTERS, strict=True):
                _scatter(panel, title, runs, part)
            row[0].set_ylabel("weight of the client", fontsize=8)
        files += _finish(figure, panels, folder / "client_weight", formats)
    return files


def _finish(figure: Any, panels: Any, path: Path, formats: Sequence[str]) -> list[Path]:
    """Adds the legend and writes the files."""
    shown = [panel.get_legend_handles_labels() for panel in panels.flat]
    entries = {label: handle for handles, labels in shown for handle, label in zip(handles, labels, strict=True)}
    handles, labels = list(entries.values()), list(entries)
    inches = 0.6 + 0.068 * max(len(label) for label in labels)  # of an entry: its line, and eight-point letters
    columns = max(1, min(len(labels), int(figure.get_figwidth() / inches)))
    figure.set_figheight(figure.get_figheight() + 0.18 * -(-len(labels) // columns))  # the panels keep their size
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    files = [path.parent / f"{path.name}.{name}" for name in formats]
    for name, file in zip(formats, files, strict=True):
        # no date inside: the same runs give the same file
        undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[name]
        figure.savefig(file, dpi=200, metadata=undated)
    return files


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


def _draw(panel: Any, title: str, records: Sequence[Record], column: Column, against: str) -> None:
    metric, scale = column.metric, 100 if column.percent else 1
    for i, (label, runs) in enumerate(by_label(records).items()):
        if not all(metric in run.scalars for run in runs):
            continue
        length = min(len(run.rounds) for run in runs)
        curves = scale * np.stack([np.asarray(run.scalars[metric][:length], float) for run in runs])
        x = np.stack([getattr(run, against)[:length] for run in runs]).mean(0)
        colour, (mean, low, high) = _COLOURS[i % 8], band(curves)
        panel.plot(x, mean, label=label, color=colour, linestyle=_DASHES[(i // 4) % 4], linewidth=1.4)
        if len(runs) > 1:
            panel.fill_between(x, low, high, color=colour, alpha=0.17, linewidth=0)
    panel.set_title(title, fontsize=9)
    panel.set_xlabel(AXES[against], fontsize=8)
    panel.locator_params(axis="x", integer=against == "rounds")
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
    if column.logarithmic:
        panel.set_yscale("log")
