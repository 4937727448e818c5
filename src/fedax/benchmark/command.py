"""The work of `fedax bench`."""

import dataclasses
import importlib.util
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedax.algorithms import algorithm_classes
from fedax.benchmark.archive import SHIPPED, Archive, Entry
from fedax.benchmark.page import render
from fedax.benchmark.spaces import FILE, read_spaces
from fedax.benchmark.standing import Standing, describe_place
from fedax.benchmark.task import FOLDER, BenchTask, Method, choose_tasks, load_tasks, write_target
from fedax.benchmark.trials import (
    STANDING,
    Tuning,
    key_of,
    make_data,
    run_method,
    search_space,
    set_target,
)
from fedax.core import InvalidInput
from fedax.report.drawing.figures import save_charts
from fedax.report.tables.comparison import to_latex, to_text
from fedax.utils.files import write, writing

ALL = "all"
"""Stands for all built-in methods."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """Tasks, search spaces and archives, ready to run.

    Args:
        folder: of the tasks.
        tasks: those that are asked for.
        spaces: by class.
        archive: the folder for results, then the standing archive.
        tuning: the budget.
    """

    folder: Path
    tasks: Sequence[BenchTask]
    spaces: Mapping[str, Mapping[str, Any]]
    archive: Archive
    tuning: Tuning = STANDING

    @classmethod
    def open(
        cls,
        tier: str,
        names: Collection[str] = (),
        folder: Path | None = None,
        spaces: Path | None = None,
        out: Path = Path("bench"),
    ) -> "Bench":
        """Reads tasks and spaces; those of a file come before the benchmark's."""
        place = folder or FOLDER
        known = read_spaces(FILE) | (read_spaces(spaces) if spaces else {})
        archives = [out] if out.resolve() == SHIPPED.resolve() else [out, SHIPPED]
        return cls(place, choose_tasks(load_tasks(place), tier, names), known, Archive(archives))

    @property
    def out(self) -> Path:
        """The folder for results."""
        return self.archive.folders[0]

    def standing(self) -> Standing:
        """Returns what all archives have about the tasks."""
        return Standing.of(self.tasks, self.archive, self.tuning)

    def show_tasks(self, console: Console) -> None:
        """Lists the tasks with their targets."""
        rows = [("task", "family", "tier", "title", "metric", "target")]
        for task in self.tasks:
            target = "not set" if task.target is None else f"{task.target.value:g}"
            rows.append((task.name, task.family, task.tier, task.title, task.metric, target))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:  # whole, whatever the terminal's width
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            console.print("  ".join(cells).rstrip(), highlight=False, soft_wrap=True)

    def set_targets(self, console: Console) -> None:
        """Sets the target of each task that has none, or that is the only one asked for."""
        for task in self.tasks:
            if task.target is not None and len(self.tasks) > 1:
                console.print(f"{task.name}: {task.target.value:g}, set before.", highlight=False)
                continue
            begin = time.perf_counter()
            target = set_target(task, self.spaces, make_data(task))
            write_target(self.folder, task.name, target)
            seconds = time.perf_counter() - begin
            told = f"{task.metric} {target.value:g}, {target.reference} {target.settings}"
            console.print(
                f"{task.name}: {told} ({seconds:.0f} s).", highlight=False, soft_wrap=True
            )

    def run(self, names: Sequence[str], console: Console) -> None:
        """Runs methods on the tasks that fit them, and shows where they stand."""
        everything = [name.lower() for name in names] == [ALL]
        methods = [Method.parse(name) for name in (algorithm_classes() if everything else names)]
        for method in methods:
            if not any(task.fits(method) for task in self.tasks):
                families = ", ".join(dict.fromkeys(task.family for task in self.tasks))
                reason = f"fits tasks of {', '.join(method.families)}; asked for: {families}"
                if not everything:
                    raise InvalidInput.because(method.label, reason)
            for task in self.tasks:  # typos in spaces before anything runs
                search_space(task, method, self.spaces)
        for entry in self.results(methods, console):
            self._say(entry, console)
        if not everything:
            self._show([method.label for method in methods], console)

    def results(self, methods: Sequence[Method], console: Console) -> Iterator[Entry]:
        """Yields the results of methods, task after task, as they are made or found.

        A task whose data are not there is left out, with the reason.
        """
        for task in self.tasks:
            wanted = [method for method in methods if task.fits(method)]
            task.required_target() if wanted else None
            data = None
            for method in wanted:
                space = search_space(task, method, self.spaces)
                key = key_of(task, method, space, self.tuning)
                entry = self.archive.find(task.name, method.label, key)
                if entry is None:
                    try:
                        data = make_data(task) if data is None else data
                    except InvalidInput as error:
                        console.print(f"{task.name} is left out: {error}", highlight=False)
                        break
                    entry = run_method(task, method, space, data, self.tuning)
                    self.archive.add(entry)
                yield entry

    def _say(self, entry: Entry, console: Console) -> None:
        told = f"refused: {entry.refused}" if entry.refused else ""
        if not told:
            chosen = ", ".join(f"{k} {v:g}" for k, v in entry.settings[entry.selected].items())
            edges = f" (at the edge: {', '.join(entry.edges)})" if entry.edges else ""
            told = f"{chosen}{edges}, {entry.seconds:.0f} s"
        console.print(f"{entry.task}: {entry.method}: {told}", highlight=False, soft_wrap=True)

    def _show(self, methods: Sequence[str], console: Console) -> None:
        """Shows the places of methods, and writes the table and the figure."""
        standing = self.standing()
        for method in methods:
            console.print(f"\n{method}", style="bold")
            for line in describe_place(standing, method):
                console.print(line, highlight=False, soft_wrap=True)
        shown = [*methods, *(standing.reference(task) for task in standing.tasks)]
        table = standing.table("rounds", shown)
        console.print(f"\n{to_text(table)}", highlight=False, soft_wrap=True)
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            write(self.out / "table.tex", to_latex(table) + "\n")
        files = [self.out / "table.tex"]
        chart = standing.chart("rounds", methods[0])
        if chart.panels and importlib.util.find_spec("matplotlib"):
            files += save_charts([chart], self.out)
        console.print("\n" + "\n".join(map(str, files)), highlight=False, soft_wrap=True)

    def write_page(self) -> Path:
        """Writes the page of all archived results on the tasks, and returns its file."""
        file = self.out / "index.html"
        with writing(file):
            self.out.mkdir(parents=True, exist_ok=True)
            write(file, render(self.standing()))
        return file
