"""Merges several run directories into one page."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedax.experiments.results.store import RunDirectory
from fedax.results import Page, Record
from fedax.results.tables.summary import counted


def merge_records(directories: Sequence[RunDirectory]) -> list[Record]:
    """Merges the runs that the reports of several directories show.

    A label that several directories use for one task gets its folder's name. Tasks of equal titles
    are merged. A directory that is given twice counts once.
    """
    shown = {name: directory.shown() for name, directory in _by_name(directories).items()}
    owners = Counter(
        key for runs in shown.values() for key in {(run.task, run.label) for run in runs}
    )
    return [
        run.with_label(f"{run.label} ({name})") if owners[run.task, run.label] > 1 else run
        for name, runs in shown.items()
        for run in runs
    ]


def comparison_page(directories: Sequence[RunDirectory]) -> Page:
    """Returns a page of several directories with the settings of all.

    The curves of a task are reduced as in the first directory that has it. A directory that is
    given twice counts once.
    """
    by_name = _by_name(directories)
    records = merge_records(directories)
    pages = {name: directory.page() for name, directory in by_name.items()}
    notes, reads = dict[str, str](), dict[str, str]()
    for page in pages.values():
        notes |= page.notes
        # the right side wins: the first directory with a task says how its curves are read
        reads = dict(page.reads) | reads
    word = "directory" if len(by_name) == 1 else "directories"
    return Page(
        "Comparison",
        f"{len(by_name)} run {word}, {counted(len(records), 'run')}.",
        records,
        notes,
        {f"{n}/{file}": text for n, page in pages.items() for file, text in page.settings.items()},
        directories[0].versions,
        [
            dataclasses.replace(sheet, title=f"{sheet.title}: {name}")
            for name, page in pages.items()
            for sheet in page.sheets
        ],
        [],
        reads,
    )


def _by_name(directories: Sequence[RunDirectory]) -> dict[str, RunDirectory]:
    """Returns directories by the names of their folders, or by their paths where names are equal.

    One that is given twice, maybe spelled in another way, counts once.
    """
    by_path = dict[Path, RunDirectory]()
    for directory in directories:
        by_path.setdefault(directory.path.resolve(), directory)
    names = [path.name for path in by_path]
    return {
        str(directory.path) if names.count(path.name) > 1 else path.name: directory
        for path, directory in by_path.items()
    }
