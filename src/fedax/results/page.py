"""One self-contained HTML page: it opens without a network and without scripts, follows the
system's light or dark, and fits a phone.
"""
# pandas states columns and groups of a frame as unions that nothing narrows
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fedax.results import drawing
from fedax.results.compare import compare_runs
from fedax.results.drawing import Picture, to_svg
from fedax.results.forms import cell_text, grid_of, note_of
from fedax.results.frame import curves_frame, describe_early_ends
from fedax.results.looks import THEME, choose_looks
from fedax.results.record import Record, by_label, by_task, describe_endings, finished
from fedax.results.tables.reductions import describe_reduction
from fedax.results.tables.summary import ABOUT, columns_of

_NOTHING: Mapping[str, Any] = {}


class Sheet(NamedTuple):
    """A further table: a title, a frame of texts, and a line below it.

    The words of verdicts (holds, does not hold, undecided, selected) are shown as such; a `lead`
    stands before the charts.
    """

    title: str
    table: pd.DataFrame
    note: str = ""
    lead: bool = False


class Page(NamedTuple):
    """The content of a report.

    Args:
        title: its heading.
        summary: one line below it.
        records: the runs; tasks and algorithms appear in the order of their first run.
        notes: one line about a task, by the task's title.
        settings: TOML texts by name, folded.
        versions: versions by package, folded.
        sheets: further tables, after the tasks.
        pictures: figures, before the tasks.
        reads: how the curves of a task become the numbers of its table, by the task's title; the
            final values by default.
        selected: of grids, see `compare_runs`.
    """

    title: str
    summary: str
    records: Sequence[Record]
    notes: Mapping[str, str] = _NOTHING
    settings: Mapping[str, str] = _NOTHING
    versions: Mapping[str, Any] = _NOTHING
    sheets: Sequence[Sheet] = ()
    pictures: Sequence[Picture] = ()
    reads: Mapping[str, str] = _NOTHING
    selected: Mapping[str, Mapping[str, str]] = _NOTHING


PRIVACY = (
    "Epsilon is of each run alone. Runs of several seeds or methods on the same data give away "
    "more together, which is not counted "
    "here. In a simulation noise and cohorts follow from the seed: epsilon says what a run with "
    "secret noise would spend, and its "
    "models protect nobody."
)
"""The note beside runs with an epsilon."""

AXES = {"round": "rounds", "bits": "bits", "hours": "hours"}
"""Horizontal axes that a page can switch to, by their columns."""


def render(page: Page) -> str:
    """Renders a page as HTML.

    >>> "<h1>a &lt; b</h1>" in render(Page("a < b", "", records=[]))
    True
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedax", "results"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # looks over all tasks, so that an algorithm looks the same in each
    order = list(by_label(page.records))
    tasks = by_task(page.records)
    axes = dict(AXES) if tasks else {}
    if any(run.time is None for run in page.records):
        del axes["hours"]
    return environment.get_template("page.html").render(
        page=page,
        axes=axes,
        tasks=[_describe_task(page, title, runs, order, axes) for title, runs in tasks.items()],
        looks=choose_looks(order),
        theme=THEME,
        svg=to_svg,
    )


def _describe_task(
    page: Page, title: str, runs: Sequence[Record], order: Sequence[str], axes: Iterable[str]
) -> dict[str, Any]:
    labels = by_label(runs)
    compared = compare_runs(runs, page.reads, selected=page.selected).to_dict("records")
    drawn = finished(runs) or runs
    frame = curves_frame(drawn)
    options: dict[str, Any] = {"order": order, "lines": len(labels), "on_page": True, "col": []}
    charts = [
        (
            column.title,
            "mean, ± one standard deviation, as in the table, within the range of the runs"
            if len(drawn) > len(labels)
            else "",
            {axis: drawing.curves(frame, axis, column.metric, **options) for axis in axes},
        )
        for column in columns_of(drawn)
        if column.chart
    ]
    caption = f"{describe_reduction(page.reads.get(title, 'last'))}. {note_of(compared)}"
    privacy = PRIVACY if any("epsilon" in run.metrics for run in runs) else ""
    _, *rows = grid_of(compared, lambda row: (cell_text(row), row["top"]), ("-", False))
    about = describe_methods(runs)
    heads = {row["column"]: ABOUT.get(row["metric"], "") for row in compared}
    return {
        "title": title,
        "note": f"{page.notes.get(title, '')} {privacy}".strip(),
        "caption": f"{caption} {describe_early_ends(drawn)}".strip(),
        "charts": charts,
        "labels": list(labels),
        "head": list(heads.items()),
        "rows": [(about[label], cells) for label, *cells in rows],
    }


def describe_methods(runs: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Returns by method the number of its runs, their rounds, and how they ended."""
    return {
        label: {
            "method": label,
            "runs": len(own),
            "rounds": max(int(run.rounds[-1]) for run in own),
            "outcome": describe_endings(own),
            "ok": not any(run.diverged or run.outcome.kind == "interrupted" for run in own),
        }
        for label, own in by_label(runs).items()
    }
