"""Several run directories on one page."""

from collections.abc import Sequence
from pathlib import Path

from fedax.experiments.results.store import RunDirectory
from fedax.report import Page, Record
from fedax.report.summary import counted


def together(directories: Sequence[RunDirectory]) -> list[Record]:
    """The runs that the directories' reports show; labels that several use for one task get their folder's name.

    Tasks of equal titles stand together.
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


def compared(directories: Sequence[RunDirectory]) -> Page:
    """The page that shows them together, with the settings of all; the curves of a task are read as the first of them does."""
    records, notes, settings, sheets = together(directories), {}, {}, []
    reads: dict[str, str] = {}
    for directory, name in zip(directories, _names([directory.path for directory in directories]), strict=True):
        page = directory.page()
        notes |= page.notes
        reads = dict(page.reads) | reads
        settings |= {f"{name}/{file}": text for file, text in page.settings.items()}
        sheets += page.sheets
    first = directories[0].page()
    line = (
        f"{counted(len(directories), 'run directory').replace('directorys', 'directories')}, {counted(len(records), 'run')}."
    )
    return Page("Comparison", line, records, notes, settings, first.versions, sheets, first.prices, reads=reads)


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' own names, with their parents where these are equal."""
    own = [path.resolve().name for path in paths]
    return [str(path) if own.count(name) > 1 else name for path, name in zip(paths, own, strict=True)]
