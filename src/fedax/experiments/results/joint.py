"""Merges several run directories into one page."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from fedax.experiments.results.store import RunDirectory
from fedax.results import Page, Record, Sheet
from fedax.results.drawing import Picture
from fedax.results.tables.summary import counted


def merge_records(directories: Sequence[RunDirectory]) -> list[Record]:
    """Merges the runs that the reports of several directories show.

    A label that several directories use for one task gets its folder's name. Tasks of equal titles
    are merged. A directory that is given twice counts once.
    """
    by_name = _by_name(directories)
    # by (task, label), the directories that have it
    owners: dict[tuple[str, str], set[str]] = {}
    for name, directory in by_name.items():
        for record in directory.shown():
            owners.setdefault((record.task, record.label), set()).add(name)
    return [
        record.with_label(f"{record.label} ({name})")
        if len(owners[record.task, record.label]) > 1
        else record
        for name, directory in by_name.items()
        for record in directory.shown()
    ]


def comparison_page(directories: Sequence[RunDirectory]) -> Page:
    """Returns a page of several directories with the settings of all.

    The curves of a task are reduced as in the first directory that has it. A directory that is
    given twice counts once.
    """
    by_name = _by_name(directories)
    records, notes, settings, sheets = merge_records(directories), {}, {}, []
    reads: dict[str, str] = {}
    for name, directory in by_name.items():
        page = directory.page()
        notes |= page.notes
        # the right side wins: the first directory with a task says how its curves are read
        reads = dict(page.reads) | reads
        settings |= {f"{name}/{file}": text for file, text in page.settings.items()}
        sheets += [
            dataclasses.replace(sheet, title=f"{sheet.title}: {name}") for sheet in page.sheets
        ]
    # those without a recipe have no study
    studies = {
        name: (directory.study, directory.shown(), directory.experiments)
        for name, directory in by_name.items()
        if directory.study
    }
    table, pictures = list[Sheet](), list[Picture]()
    if studies:
        # any of them: the comparison is over all that are passed
        any_study = next(iter(studies.values()))[0]
        table, pictures = any_study.side_by_side(studies)
    line = (
        f"{counted(len(by_name), 'run directory').replace('directorys', 'directories')}, "
        f"{counted(len(records), 'run')}."
    )
    return Page(
        "Comparison",
        line,
        records,
        notes,
        settings,
        directories[0].versions,
        table + sheets,
        pictures,
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
