"""Runs in Python: a table, a figure and a page of one, as `History` shows itself, and a page of
several.
"""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedax.core import History, InvalidInput
from fedax.results import drawing
from fedax.results.compare import compare_runs
from fedax.results.drawing import Picture, save_as
from fedax.results.forms import format_tables
from fedax.results.frame import curves_frame
from fedax.results.page import Page, render
from fedax.results.record import Record, check_metrics, finished
from fedax.results.tables.summary import charts_of, counted
from fedax.results.versions import versions
from fedax.utils.files import write


def plot(history: History, *metrics: str) -> Any:
    """Plots some metrics of a run, or all that are one number, against rounds, as a figure of
    Matplotlib.

    Args:
        history: the run.
        metrics: names of scalar metrics.

    Raises:
        UnknownName: a metric that the run does not have.
    """
    record = Record.of(history, label=history.algorithm)
    check_metrics([record], metrics)
    return drawing.curves(curves_frame([record]), y=list(metrics or history.metrics), col=[])


def compare(
    histories: Mapping[str, History | Sequence[History]],
    path: str | Path = "comparison.html",
    *,
    title: str = "Comparison",
) -> Path:
    """Writes a page with the curves and final values of several runs, which opens without a
    network, or a figure of the curves.

    Args:
        histories: by the name in the legend, a run or the runs of several seeds: those are shown by
            their mean, with a band of one standard deviation. All of one task.
        path: of the page, an HTML file; of a figure for a paper, a file that ends in `.pdf`, `.png`
            or `.svg` (by Matplotlib).
        title: its heading.

    Returns:
        The path.

    Raises:
        InvalidInput: as `table`.
        ValueError: another ending.
        WriteFailed: a file that cannot be written.

    Example:
        >>> import tempfile
        >>> import fedax
        >>> task, methods = (
        ...     fedax.task("synthetic", clients=3),
        ...     {"FedAvg": fedax.FedAvg(), "FedProx": fedax.FedProx(mu=0.1)},
        ... )
        >>> runs = {
        ...     name: fedax.run_grid([method], task, seed=[0, 1], rounds=1)
        ...     for name, method in methods.items()
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fedax.compare(runs, f"{folder}/page.html").name
        'page.html'
    """
    path = Path(path)
    listed = _list_runs(histories, "compare")
    records = _make_records(listed, title, "compare")
    if path.suffix != ".html":
        figure = drawing.curves(
            curves_frame(finished(records) or records), y=charts_of(records), col=[]
        )
        return save_as(Picture(path.stem, figure), path)
    settings = {
        label: json.dumps(
            [{"settings": run.details.settings, "origin": run.details.origin} for run in runs],
            indent=1,
        )
        for label, runs in listed.items()
    }
    page = Page(
        title,
        f"{counted(len(listed), 'method')}, {counted(len(records), 'run')}.",
        records,
        settings=settings,
        versions=versions(),
    )
    write(path, render(page))
    return path


class Table(str):
    """The text of a table, which notebooks show as it is printed."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


def table(
    histories: Mapping[str, History | Sequence[History]],
    form: str = "text",
    *,
    metrics: Sequence[str] | None = None,
    title: str = "Comparison",
) -> str:
    """Returns the final values of several runs as a table, with the best and those that are not
    significantly worse marked.

    Runs are paired by their seeds. If lists have runs on several draws of the data, which are known
    by their training examples, the draws are tested, each by the mean over its seeds. Runs with
    privacy say nothing of their examples: all of them count as runs on the same data.
    Means and tests rest on the finished runs that all names have, and the line below the table
    says which were left out. The tests are Student's on paired differences to the best mean,
    corrected by Holm. A single seed is not tested, and only the best is marked.

    Args:
        histories: by the name in the table, a run or a list of runs, of several seeds or draws of
            the data. All of one task.
        form: "text", "latex" (for booktabs), "markdown" or "csv".
        metrics: which; by default those that reports show.
        title: of the table.

    Raises:
        InvalidInput: no runs, or a seed twice on the same data.
        UnknownName: another form, or a metric that no run has.

    Example:
        >>> import fedax
        >>> task, methods = (
        ...     fedax.task("synthetic", clients=3),
        ...     {"FedAvg": fedax.FedAvg(), "FedProx": fedax.FedProx(mu=0.1)},
        ... )
        >>> runs = {
        ...     name: fedax.run_grid([method], task, seed=[0, 1], rounds=1)
        ...     for name, method in methods.items()
        ... }
        >>> fedax.table(runs, "markdown", metrics=["test_accuracy"]).splitlines()[2]
        '| Algorithm | Test accuracy (%) |'
    """
    records = _make_records(_list_runs(histories, "table"), title, "table")
    return Table(format_tables(compare_runs(records, metrics=metrics), form))


def _list_runs(
    histories: Mapping[str, History | Sequence[History]], name: str
) -> dict[str, list[History]]:
    """Returns lists of runs by label; `name` is that of the public function, for messages."""
    listed = {
        label: [runs] if isinstance(runs, History) else list(runs)
        for label, runs in histories.items()
    }
    is_known = all(isinstance(run, History) for runs in listed.values() for run in runs)
    if not listed or not all(listed.values()) or not is_known:
        allowed = 'a dict of one or more runs by name, as in {"FedAvg": history}'
        raise InvalidInput.of(f"{name}(histories=...)", histories, allowed)
    return listed


def _make_records(histories: Mapping[str, list[History]], title: str, name: str) -> list[Record]:
    """Returns the records of runs with the seeds and the draws of the data by which they are
    paired.

    Raises:
        InvalidInput: a list has a seed twice on the same data.
    """
    records = []
    # over all labels, in whichever order the lists have them
    draws = dict[Any, int]()
    for label, runs in histories.items():
        keys = [
            (int(origin.get("seed", 0)), draws.setdefault(origin.get("data.train"), len(draws)))
            for origin in (run.details.origin or {} for run in runs)
        ]
        if len(set(keys)) < len(keys):
            allowed = "each seed once on the same data"
            raise InvalidInput.found(
                f"{name}(histories=...)",
                f"{label} with seeds {[seed for seed, _ in keys]}",
                allowed,
            )
        records += [
            Record.of(run, task=title, label=label, seed=seed, draw=draw)
            for run, (seed, draw) in zip(runs, keys, strict=True)
        ]
    return records
