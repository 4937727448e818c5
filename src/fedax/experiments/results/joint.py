"""Merges several run directories into one page."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from fedax.experiments.recipes.cells import Cell, Number
from fedax.experiments.recipes.comparison import in_digits, words
from fedax.experiments.results.store import RunDirectory
from fedax.report import Page, Record, Sheet
from fedax.report.drawing.charts import Axis, Chart, Panel, Series, value_axis
from fedax.report.drawing.panels import framed
from fedax.report.tables.summary import counted

Key: TypeAlias = tuple[str, str, str, Number]
"""Task, algorithm, metric and the paper's number: the same cell in several folders."""
_NONE = Number(math.nan)


def merge_records(directories: Sequence[RunDirectory]) -> list[Record]:
    """Merges the runs that the reports of several directories show.

    A label that several directories use for one task gets its folder's name. Tasks of equal titles
    are merged.
    """
    used: dict[tuple[str, str], set[Path]] = {}
    for directory in directories:
        for record in directory.shown():
            used.setdefault((record.task, record.label), set()).add(directory.path)
    return [
        record.renamed(f"{record.label} ({name})") if len(used[record.task, record.label]) > 1 else record
        for directory, name in zip(directories, _names([directory.path for directory in directories]), strict=True)
        for record in directory.shown()
    ]


def comparison_page(directories: Sequence[RunDirectory]) -> Page:
    """Returns a page of several directories with the settings of all.

    The curves of a task are reduced as in the first directory that has it.
    """
    records, notes, settings, sheets = merge_records(directories), {}, {}, []
    reads: dict[str, str] = {}
    for directory, name in zip(directories, _names([directory.path for directory in directories]), strict=True):
        page = directory.page()
        notes |= page.notes
        reads = dict(page.reads) | reads
        settings |= {f"{name}/{file}": text for file, text in page.settings.items()}
        sheets += [dataclasses.replace(sheet, title=f"{sheet.title}: {name}") for sheet in page.sheets]
    first, (table, charts) = directories[0].page(), _cells(directories)
    line = (
        f"{counted(len(directories), 'run directory').replace('directorys', 'directories')}, {counted(len(records), 'run')}."
    )
    return Page("Comparison", line, records, notes, settings, first.versions, table + sheets, first.prices, charts, reads)


def _cells(directories: Sequence[RunDirectory]) -> tuple[list[Sheet], list[Chart]]:
    """Returns a table, and a chart for each metric, of the papers' numbers beside ours of every folder.

    Both are empty if at most one folder is of a recipe.
    """
    found = {
        name: {cell[:4]: cell for cell in directory.comparison(directory.recipe).rows}
        for directory, name in zip(directories, _names([directory.path for directory in directories]), strict=True)
        if directory.recipe
    }
    keys = list(dict.fromkeys(key for cells in found.values() for key in cells))
    if len(found) < 2 or not keys:
        return [], []
    several = len({metric for _, _, metric, _ in keys}) > 1
    rows = []
    for key in keys:
        ours = [cells.get(key) for cells in found.values()]
        texts = ["-" if cell is None else f"{in_digits(cell.ours)} ({cell.difference:+.2f})" for cell in ours]
        rows.append([key[0], key[1], *([words(key[2])] if several else []), in_digits(key[3]), *texts])
    head = ["Task", "Algorithm", *(["Metric"] if several else []), "Paper", *found]
    note = "Means ± standard deviations; in brackets the difference to the paper."
    charts = [_dots(metric, keys, found) for metric in dict.fromkeys(key[2] for key in keys)]
    return [Sheet("The papers' numbers beside those of every folder", head, rows, note, lead=True)], charts


def _dots(metric: str, keys: Sequence[Key], found: Mapping[str, Mapping[Key, Cell]]) -> Chart:
    """Draws a panel for each task and a row for each algorithm: the paper's number, below it ours of every folder."""
    panels = []
    for task in dict.fromkeys(key[0] for key in keys if key[2] == metric):
        own = [key for key in keys if (key[0], key[2]) == (task, metric)]
        places, step = -np.arange(len(own), dtype=float), 0.54 / len(found)
        papers = [_across("paper, ± standard deviation", 0, [key[3] for key in own], places + 0.27, "paper")]
        ours = [
            _across(name, i, [cells[k].ours if k in cells else _NONE for k in own], places + 0.27 - step * (i + 1), "ours")
            for i, (name, cells) in enumerate(found.items())
        ]
        ticks = tuple((float(place), key[1]) for place, key in zip(places, own, strict=True))
        rows = Axis("", low=float(places[-1]) - 0.6, high=0.6, ticks=ticks)
        series = [*papers, *ours]
        panels.append(Panel(task, framed(value_axis(metric), series), rows, series))
    title = f"{words(metric)}: the papers' numbers beside those of every folder"
    return Chart(f"cells-{metric}", title, panels, min(3, len(panels)))


def _across(label: str, style: int, numbers: Sequence[Number], places: np.ndarray, kind: Literal["paper", "ours"]) -> Series:
    mean = np.array([number.mean for number in numbers], float)
    spread = np.nan_to_num(np.array([number.deviation for number in numbers], float))
    mean = np.where(np.isfinite(mean), mean, np.nan)
    return Series(label, style, mean, places, mean - spread, mean + spread, kind)


def _names(paths: Sequence[Path]) -> list[str]:
    """Returns the names of folders, with their parents where names are equal."""
    own = [path.resolve().name for path in paths]
    return [str(path) if own.count(name) > 1 else name for path, name in zip(paths, own, strict=True)]
