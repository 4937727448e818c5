"""Figures for papers: PDF, PNG or SVG by Matplotlib (the extra `paper`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import FedaxError, InvalidInput
from fedax.report.record import Record, by_label, by_task
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


def save_figures(
    records: Sequence[Record], folder: Path, formats: Sequence[str] = ("pdf", "png"), against: str = "rounds"
) -> list[Path]:
    """One figure per metric, with a panel for every task; bands are one standard deviation over the runs.

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
        figure = Figure(figsize=(3.3 * across, 2.6 * down), layout="constrained")
        panels: Any = figure.subplots(down, across, squeeze=False)
        for panel, (title, runs) in zip(panels.flat, tasks.items(), strict=False):
            _draw(panel, title, runs, column, against)
            panel.set_ylabel(column.title + (" (%)" if column.percent else ""), fontsize=8)
        for panel in list(panels.flat)[len(tasks) :]:
            panel.remove()
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * across), frameon=False, fontsize=9
        )
        for name in formats:
            files.append(folder / f"{column.metric}.{name}")
            # no date inside: the same runs give the same file
            undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[name]
            figure.savefig(files[-1], dpi=200, metadata=undated)
    return files


def _draw(panel: Any, title: str, records: Sequence[Record], column: Column, against: str) -> None:
    metric, scale = column.metric, 100 if column.percent else 1
    for i, (label, runs) in enumerate(by_label(records).items()):
        if not all(metric in run.scalars for run in runs):
            continue
        length = min(len(run.rounds) for run in runs)
        curves = scale * np.stack([np.asarray(run.scalars[metric][:length], float) for run in runs])
        x = np.stack([getattr(run, against)[:length] for run in runs]).mean(0)
        colour = _COLOURS[i % 8]
        panel.plot(x, curves.mean(0), label=label, color=colour, linestyle=_DASHES[(i // 4) % 4], linewidth=1.4)
        if len(runs) > 1:
            mean, spread = curves.mean(0), curves.std(0, ddof=1)
            low = np.where(mean - spread > 0, mean - spread, curves.min(0))
            panel.fill_between(x, low, mean + spread, color=colour, alpha=0.17, linewidth=0)
    panel.set_title(title, fontsize=9)
    panel.set_xlabel(AXES[against], fontsize=8)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
    if column.logarithmic:
        panel.set_yscale("log")
