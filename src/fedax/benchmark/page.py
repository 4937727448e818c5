"""The page of the benchmark: one HTML file with leaderboards, profiles and curves."""

import json
import math
import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import numpy as np

from fedax.benchmark.archive import Entry
from fedax.benchmark.measures import COSTS, QUALITIES
from fedax.benchmark.scores import LIMIT, typical
from fedax.benchmark.standing import LEAST, Standing
from fedax.benchmark.task import BenchTask
from fedax.results.drawing.styles import known_style
from fedax.results.tables.means import aligned, curves_of

POINTS = 60
"""Of a curve on the page, at most."""


def render(standing: Standing) -> str:
    """Renders the page; it opens without a network, in light and dark, and fits a phone."""
    parts = {
        "style": files("fedax.results").joinpath("style.css").read_text(encoding="utf-8"),
        # the only character sequences that could end a script element begin with "<"
        "data": json.dumps(page_data(standing), separators=(",", ":"), allow_nan=False).replace(
            "<", "\\u003c"
        ),
    }
    template = files("fedax.benchmark").joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def page_data(standing: Standing) -> dict[str, Any]:
    """Returns everything on the page as plain values, with None where a number is not finite."""
    families = {
        family: {
            "tasks": [_task(standing, task) for task in standing.tasks_of(family)],
            "placed": {
                measure: [list(map(_finite, one)) for one in standing.placed(family, measure)]
                for measure in COSTS
            },
            "ratios": {measure: _ratios(standing, family, measure) for measure in COSTS},
        }
        for family in standing.families
    }
    methods = dict.fromkeys(name for entries in standing.entries.values() for name in entries)
    looks = {name: number for name in methods if (number := known_style(name)) is not None}
    measures = {name: [cost.title, cost.heading] for name, cost in COSTS.items()}
    return {
        "families": families,
        "styles": looks,
        "costs": measures,
        "qualities": QUALITIES,
        "limit": LIMIT,
        "least": LEAST,
    }


def _ratios(standing: Standing, family: str, measure: str) -> dict[str, list[float | None]]:
    methods, found = standing.ratios(family, measure)
    return {method: _rounded(row) for method, row in zip(methods, found, strict=True)}


def _task(standing: Standing, task: BenchTask) -> dict[str, Any]:
    entries = standing.entries[task.name]
    return {
        "name": task.name,
        "title": task.title,
        "metric": task.metric.replace("_", " "),
        "target": task.required_target(),
        "reference": standing.reference(task),
        "cells": {
            measure: _cells(standing, task, measure) for measure in (*task.measures, *task.quality)
        },
        "curves": {method: _curve(task, entry) for method, entry in entries.items()},
        "refused": dict(standing.refused[task.name]),
    }


def _cells(standing: Standing, task: BenchTask, measure: str) -> dict[str, list[Any]]:
    """Returns by method the number, the gain over the reference with its interval, and the
    verdict.
    """
    told = standing.differences(task, measure)
    found = {}
    for method in standing.entries[task.name]:
        numbers = standing.numbers(task, measure, method)
        # costs may be infinite, and have a median; qualities have a mean
        value = typical(numbers) if measure in COSTS else float(numbers.mean())
        effect = told[method].effect if method in told else None
        gain = [None] * 3 if effect is None else _rounded([effect.mean, effect.low, effect.high])
        # number, mean gain, its ends, verdict
        found[method] = [_finite(value), *gain, told[method].verdict if method in told else ""]
    return found


def _curve(task: BenchTask, entry: Entry) -> dict[str, Any]:
    """Returns the mean curve of the task's metric, and how the method was set."""
    runs = entry.records
    rounds, _ = aligned(runs)
    values = np.mean(curves_of(runs, task.metric, runs), axis=0)
    # positions of evenly spaced points; short curves have fewer than `POINTS`
    shown = np.unique(np.linspace(0, len(rounds) - 1, POINTS).astype(int))
    return {
        "x": rounds[shown].tolist(),
        "y": _rounded(values[shown]),
        "settings": dict(entry.settings[entry.selected]),
        "edges": list(entry.edges),
        "source": entry.space.get("source", ""),
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def _rounded(values: Iterable[Any]) -> list[float | None]:
    return [_finite(float(value)) for value in values]
