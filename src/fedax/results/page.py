"""One self-contained HTML page: it opens without a network, follows the system's light or dark, and
fits a phone.
"""

import dataclasses
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from fedax.core.directions import Mode, worst_of
from fedax.observe.modes import mode_of
from fedax.results.drawing.charts import Chart, along, plain, staggered
from fedax.results.drawing.styles import styles
from fedax.results.record import (
    Record,
    by_draw,
    by_label,
    by_task,
    is_percent,
    weights_at,
    with_named_clients,
)
from fedax.results.tables.means import aligned, band, curves_of, describe_early_ends, mean_position
from fedax.results.tables.reductions import describe_reduction
from fedax.results.tables.summary import (
    ABOUT,
    Column,
    Row,
    best,
    columns_of,
    format_row_value,
    scale_of,
    summarize,
)


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A further table: a title, the heads of its columns, rows of texts, and a line below it.

    The words of verdicts (holds, does not hold, undecided, selected) are shown as such; a `lead`
    stands before the charts. Of a table with `first`, the rows after that number are shown on
    demand.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    lead: bool = False
    first: int = 0


@dataclasses.dataclass(frozen=True)
class Page:
    """The content of a report.

    Args:
        title: its heading.
        summary: one line below it.
        records: the runs; tasks and algorithms appear in the order of their first run.
        notes: one line about a task, by the task's title.
        reads: how the curves of a task become the numbers of its table, by the task's title; the
            final values by default.
        settings: TOML texts by name, folded.
        versions: versions by package, folded.
        sheets: further tables, after the tasks.
        prices: of the simulated time when the page opens: `round`, `step` and `gigabit`.
        charts: figures, before the tasks.
    """

    title: str
    summary: str
    records: Sequence[Record]
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    versions: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    sheets: Sequence[Sheet] = ()
    prices: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"round": 1.0, "step": 0.01, "gigabit": 0.0}
    )
    charts: Sequence[Chart] = ()
    reads: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


PRIVACY = (
    "Epsilon is of each run alone. Runs of several seeds or methods on the same data give away "
    "more together, which is not counted "
    "here. In a simulation noise and cohorts follow from the seed: epsilon says what a run with "
    "secret noise would spend, and its "
    "models protect nobody."
)
"""The note beside runs with an epsilon."""

MOST_CLIENTS = 200
"""Rows of a table of clients; a folder's `clients.csv` has all."""


def clients_sheets(records: Sequence[Record]) -> list[Sheet]:
    """Returns a table of the clients' final scores for each task and score: a row for each client
    by name, worst first, and a column for each algorithm.

    None where clients have no names or no scores.
    """
    tasks = by_task(with_named_clients(records))
    return [
        _clients_sheet(metric, mode, runs, title if len(tasks) > 1 else "")
        for title, runs in tasks.items()
        for metric in dict.fromkeys(name for run in runs for name in run.by_client)
        if (mode := mode_of(f"{metric}_mean", [run.modes for run in runs]))
    ]


def _clients_sheet(metric: str, mode: Mode, runs: Sequence[Record], task: str) -> Sheet:
    values: dict[str, dict[str, list[float]]] = {}  # of the runs, by client and algorithm
    for run in runs:
        curve = np.asarray(run.by_client.get(metric, np.zeros((1, 0))), float)
        for client, first, last in zip(run.clients or (), curve[0], curve[-1], strict=False):
            if np.isfinite(first):  # a client without test examples has no score at any time
                values.setdefault(client, {}).setdefault(run.label, []).append(last)
    labels = list(by_label(runs))
    means = {
        client: [float(np.mean(scores.get(label, math.nan))) for label in labels]
        for client, scores in values.items()
    }

    def rank(client: str) -> float:
        mean = float(np.mean(means[client]))
        # one that is not finite is worse than all others
        return (mean if mode == "max" else -mean) if math.isfinite(mean) else -math.inf

    percent, has_several_runs = is_percent(metric), len(runs) > len(labels)
    form = "{:.1f}" if percent else "{:.4g}"
    rows = [
        [
            client,
            *(
                form.format(mean * scale_of(metric)) if math.isfinite(mean) else "not finite"
                for mean in means[client]
            ),
        ]
        for client in sorted(means, key=rank)
    ]
    score_name = metric.removeprefix("client_").replace("_", " ") + (" (%)" if percent else "")
    note = (
        "On each client's test examples, at the "
        f"end{', mean of the runs' if has_several_runs else ''}."
        " Worst first, by the mean of the columns."
    )
    if len(rows) > MOST_CLIENTS:
        note += f" The worst {MOST_CLIENTS} of {len(rows)} clients; clients.csv has all."
    title = f"Clients: {score_name}" + (f", {task}" if task else "")
    return Sheet(title, ["Client", *labels], rows[:MOST_CLIENTS], note, first=10)


def render(page: Page) -> str:
    """Renders a page as HTML.

    >>> "<h1>a &lt; b</h1>" in render(Page("a < b", "", records=[]))
    True
    """
    # styles over all tasks, so that an algorithm looks the same in each
    package_files, style_numbers = (
        files("fedax.results"),
        styles(record.label for record in page.records),
    )
    data = {
        "tasks": [
            _task_data(
                title, runs, page.notes.get(title, ""), page.reads.get(title, "last"), style_numbers
            )
            for title, runs in by_task(page.records).items()
        ],
        "settings": dict(page.settings),
        "versions": dict(page.versions),
        "sheets": [dataclasses.asdict(sheet) for sheet in page.sheets],
        "prices": dict(page.prices),
        "figures": [plain(chart) for chart in page.charts],
    }
    from plotly.offline import get_plotlyjs  # takes long to import, so only on demand

    fields = {
        "title": html.escape(page.title),
        "summary": html.escape(page.summary),
        "footnote": html.escape(f"Made by fedax {page.versions.get('fedax', '')}".strip() + "."),
        "style": package_files.joinpath("style.css").read_text(encoding="utf-8"),
        "script": package_files.joinpath("report.js").read_text(encoding="utf-8"),
        "plotly": get_plotlyjs(),
        # the only character sequences that could end a script element begin with "<"
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    template = package_files.joinpath("template.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)


def _task_data(
    title: str, runs: Sequence[Record], note: str, read: str, style_numbers: Mapping[str, int]
) -> dict[str, Any]:
    columns, rows = columns_of(runs), summarize(runs, read)
    # bands and deviations need several runs
    has_several_runs = any(row.runs > 1 for row in rows)
    band = "mean of the runs, ± one standard deviation" if has_several_runs else ""
    labels = by_label(runs)
    algorithms = [
        _algorithm_data(label, label_runs, runs, position, len(labels), style_numbers[label])
        for position, (label, label_runs) in enumerate(labels.items())
    ]
    charts = [
        {
            "metric": c.metric,
            "title": c.title,
            "percent": c.percent,
            "note": band,
        }
        | _log_scale(c, [a["series"][c.metric] for a in algorithms if c.metric in a["series"]])
        for c in columns
        if c.chart
    ]
    if any(algorithm["clients"] for algorithm in algorithms):
        ranks = "on its own test examples, sorted" + (
            "; mean of the runs" if has_several_runs else ""
        )
        charts.append(
            {
                "metric": "clients",
                "title": "Accuracy by client",
                "percent": True,
                "loss": False,
                "note": ranks,
            }
        )
    if any(algorithm["weights"] for algorithm in algorithms):
        points = (
            "at the end"
            + ("; mean of the runs" if has_several_runs else "")
            + ("; dotted: by the number of examples")
        )
        charts.append(
            {
                "metric": "weights",
                "title": "Weight by client",
                "percent": True,
                "loss": all(
                    value is not None and value > 0
                    for algorithm in algorithms
                    for side in algorithm["weights"]
                    for value in side
                ),
                "note": points,
            }
        )
    values = describe_reduction(read)
    caption = (
        f"{values}; ± is the sample standard deviation over the runs; bands stay within their "
        "range."
        if has_several_runs
        else f"{values} of a single run: small differences may be chance."
    )
    if any("epsilon" in run.metrics for run in runs):
        note = f"{note} {PRIVACY}".strip()
    caption = " ".join(
        [
            caption,
            *filter(
                None,
                (describe_early_ends(label, label_runs) for label, label_runs in labels.items()),
            ),
        ]
    )
    return {
        "title": title,
        "note": note,
        "caption": caption,
        "charts": charts,
        "algorithms": algorithms,
        "table": {
            "head": ["Algorithm", "Runs", "Rounds", *(c.title for c in columns), "Outcome"],
            # the columns of counts and outcome need no explanation
            "about": ["", "", "", *(ABOUT.get(c.metric, "") for c in columns), ""],
            "rows": _table_rows(rows, runs),
        },
    }


def _log_scale(
    column: Column, curves: Sequence[Mapping[str, list[float | None]]]
) -> dict[str, Any]:
    """Returns whether a chart can have a logarithmic axis, and the value at which its bands end
    there: None where all of them are positive.
    """
    values = [v for curve in curves for side in curve.values() for v in side if v is not None]
    positive = [value for value in values if value > 0]
    if not column.logarithmic or not positive:
        return {"loss": False}
    if len(positive) == len(values):
        return {"loss": True, "floor": None}
    # below its minimum an objective is by rounding only: such a gap is below what can be measured
    return {"loss": column.metric == "objective_gap", "floor": min(positive)}


def _table_rows(rows: Sequence[Row], runs: Sequence[Record]) -> list[dict[str, Any]]:
    columns = columns_of(runs)
    winners = {column.metric: best(column, rows) for column in columns}

    def cells(row: Row) -> list[dict[str, str]]:
        values = [
            {
                "text": format_row_value(row, c),
                "mark": "best" if row.label in winners[c.metric] else "",
            }
            for c in columns
        ]
        counts = [{"text": str(row.runs), "mark": ""}, {"text": str(row.rounds), "mark": ""}]
        return [*counts, *values, {"text": row.outcome, "mark": "" if row.ok else "bad"}]

    return [{"label": row.label, "cells": cells(row)} for row in rows]


def _algorithm_data(
    label: str,
    runs: Sequence[Record],
    on_task: Sequence[Record],
    position: int,
    count: int,
    style: int,
) -> dict[str, Any]:
    """Draws mean curves over the rounds of `aligned`, with markers that those of other algorithms
    do not cover.
    """
    rounds, _ = aligned(runs)
    series = {}
    for metric in (column.metric for column in columns_of(runs) if column.chart):
        # a mean over some of the runs would be read as one over all
        if not all(metric in run.scalars for run in runs):
            continue
        mean, low, high = band(curves_of(runs, metric, on_task))
        series[metric] = {"mean": _to_json_numbers(mean)}
        if len(runs) > 1:
            series[metric] |= {"low": _to_json_numbers(low), "high": _to_json_numbers(high)}
    # positions on all axes that the page can switch to
    x = {"rounds": rounds.tolist()}
    x |= {
        name: _to_json_numbers(mean_position(runs, [getattr(run, name) for run in runs]))
        for name in ("bits", "seconds")
    }
    # runs without a record of gradients stand at 0
    counts = [np.zeros(len(run.rounds)) if run.gradients is None else run.gradients for run in runs]
    x["gradients"] = _to_json_numbers(mean_position(runs, counts))
    # the choice of axes is one for the task, so all of its runs need a clock
    if all(run.time is not None for run in on_task):
        x |= {
            name: _to_json_numbers(mean_position(runs, [along(run, name) for run in runs]))
            for name in ("time", "energy")
        }
    extras = {
        "clients": _sort_accuracies(runs),
        "weights": _mean_weights(runs),
        "marked": staggered(len(rounds), position, count),
    }
    return {"label": label, "style": style, "x": x, "series": series} | extras


def _sort_accuracies(runs: Sequence[Record]) -> list[float | None]:
    """Returns the final accuracies of the clients with test examples, sorted within each run,
    averaged by rank.

    One that is not finite counts as the worst of all.
    """
    curves = [
        np.asarray(run.metrics["client_accuracy"], float)
        for run in runs
        if "client_accuracy" in run.metrics
    ]
    # of a client without test examples all are NaN
    curves = [curve[:, np.isfinite(curve[0])] for curve in curves]
    # ranks can be averaged only over equally many clients
    if not curves or len({curve.shape[1] for curve in curves}) > 1:
        return []
    # from first and last accuracies
    worst = worst_of(np.concatenate([curve[[0, -1]].ravel() for curve in curves]), "max")
    final = [np.sort(np.where(np.isfinite(curve[-1]), curve[-1], worst)) for curve in curves]
    return _to_json_numbers(np.mean(final, axis=0))


def _mean_weights(runs: Sequence[Record]) -> list[list[float | None]]:
    """Returns the final shares of examples and the weights of the clients, averaged over the runs
    on the same data.
    """
    final = [
        weights_at(draw_runs, -1)
        for draw_runs in by_draw(runs)
        if all("client_weight" in run.metrics for run in draw_runs)
    ]
    return [_to_json_numbers(np.concatenate(values)) for values in zip(*final, strict=True)]


def _to_json_numbers(values: np.ndarray) -> list[float | None]:
    """Returns numbers for JSON: five digits, and None where a number is not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
