"""The work of `fedax bench`."""

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedax.algorithms import algorithm_classes
from fedax.benchmark.archive import SHIPPED, Archive, Entry, Keys
from fedax.benchmark.page import render
from fedax.benchmark.plan import Cell, cells_of
from fedax.benchmark.spaces import FILE, Space, read_spaces
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
from fedax.core import InvalidInput, Task
from fedax.core.hyper import declared
from fedax.errors import RunExists
from fedax.results.drawing import save
from fedax.results.forms import format_tables
from fedax.utils.files import portable, write, writing
from fedax.utils.lock import held
from fedax.utils.plugins import is_user_code

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
        """Reads tasks and spaces; those of a file come before the benchmark's.

        Raises:
            UnknownName: no such tier or task.
        """
        place = folder or FOLDER
        # spaces of the user's file replace those of the same class
        known = read_spaces(FILE) | (read_spaces(spaces) if spaces else {})
        # results are found in both, and written to the first
        archives = [out] if out.resolve() == SHIPPED.resolve() else [out, SHIPPED]
        tasks = choose_tasks(load_tasks(place), tier, names)
        return cls(place, tasks, known, Archive(archives))

    @property
    def out(self) -> Path:
        """The folder for results."""
        return self.archive.folders[0]

    def standing(self) -> Standing:
        """Returns what all archives have about the tasks."""
        return Standing.of(self.tasks, self.archive, self.tuning, keys=self._keys())

    def _keys(self, methods: Sequence[Method] = ()) -> Keys:
        """Returns the fingerprints of current results: of built-in methods with the benchmark's
        search spaces, and of some methods with the spaces of this command.
        """
        standing, keys = read_spaces(FILE), dict[tuple[str, str], str]()
        builtin = [Method(name, {}) for name in algorithm_classes()]
        for task in self.tasks:
            if task.target is None:
                continue
            for some, spaces in ((builtin, standing), (methods, self.spaces)):
                keys |= {
                    (task.name, method.label): key_of(
                        task, method, search_space(task, method, spaces), self.tuning
                    )
                    for method in some
                    if task.fits(method)
                }
        return keys

    def show_tasks(self, console: Console) -> None:
        """Lists the tasks with their targets."""
        rows = [("task", "family", "tier", "title", "metric", "target")]
        for task in self.tasks:
            target = "not set" if task.target is None else f"{task.target.value:g}"
            rows.append((task.name, task.family, task.tier, task.title, task.metric, target))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:  # whole lines, also in a narrow terminal
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            _print(console, "  ".join(cells).rstrip())

    def set_targets(self, console: Console) -> None:
        """Sets the target of each task that has none, or that is the only one asked for."""
        for task in self.tasks:
            # a target that was set stays, unless the task was asked for alone
            if task.target is not None and len(self.tasks) > 1:
                _print(console, f"{task.name}: {task.target.value:g}, set before.")
                continue
            begin = time.perf_counter()
            target = set_target(task, self.spaces, make_data(task))
            write_target(self.folder, task.name, target)
            seconds = time.perf_counter() - begin
            told = f"{task.metric} {target.value:g}, {target.reference} {target.settings}"
            _print(console, f"{task.name}: {told} ({seconds:.0f} s).")

    def run(self, names: Sequence[str], console: Console) -> None:
        """Runs methods on the tasks that fit them, and shows where they stand.

        Args:
            names: of the methods, or `all`.
            console: for what is done.
        """
        everything = [name.lower() for name in names] == [ALL]
        methods = [Method.parse(name) for name in (algorithm_classes() if everything else names)]
        # with `all`, methods that fit none of the tasks are passed over; a named one is an error
        for method in methods:
            if not any(task.fits(method) for task in self.tasks):
                families = ", ".join(dict.fromkeys(task.family for task in self.tasks))
                reason = f"fits tasks of {', '.join(method.families)}; asked for: {families}"
                if not everything:
                    raise InvalidInput.because(method.label, reason)
            for task in self.tasks:  # typos in spaces before anything runs
                search_space(task, method, self.spaces)
            if is_user_code("algorithm", method.name):
                self._show_space(method, console)
        titles = [method.label for method in methods]
        for title in titles:
            # results are found by their title
            if titles.count(title) > 1:
                reason = f"{titles.count(title)} of the methods have this title"
                raise InvalidInput.because(title, reason, "Give each its own label=....")
        cells = cells_of(self.tasks, methods)
        self.results(cells, console)
        if not everything:
            self._show(methods, console)

    def _show_space(self, method: Method, console: Console) -> None:
        """Says which hyperparameters of a user's method are searched, and which keep a value."""
        task = next(task for task in self.tasks if task.fits(method))
        ranges = search_space(task, method, self.spaces).ranges
        searched = [
            f"{key} {'log' if one.log else 'linear'} [{one.low:g}, {one.high:g}]"
            for key, one in ranges.items()
        ]
        fixed = [key for key in declared(method.kind) if key not in ranges]
        kept = f" Not searched: {', '.join(fixed)}." if fixed else ""
        _print(console, f"{method.label} searches {', '.join(searched)}.{kept}")

    def results(self, cells: Sequence[Cell], console: Console) -> None:
        """Makes the results of cells that are not in the archive.

        Other processes may do so at the same time: each leaves the cells alone that another one
        works on. A task whose data are not there is left out, with the reason.
        """
        # targets are needed by every key; asked for before anything runs
        for cell in cells:
            cell.task.required_target()
        makers = _Data(console)
        busy = 0
        for number, cell in enumerate(cells, 1):
            if (entry := self._find(cell)) is None:
                data = makers.of(cell.task)
                if data is None:
                    continue
                folder = self.out / cell.task.name
                # the lock file lies in the folder of the task
                with writing(folder):
                    folder.mkdir(parents=True, exist_ok=True)
                try:
                    with held(folder, f".{portable(cell.method.label)}.lock"):
                        # another process may have finished it in between
                        entry = self._find(cell) or self._make(cell, data)
                except RunExists:
                    busy += 1
                    continue
            self._say(entry, f"{number}/{len(cells)}", console)
        if busy:
            _print(
                console,
                f"Another process works on {busy} of them; run it again for their results.",
            )

    def _space(self, cell: Cell) -> Space:
        return search_space(cell.task, cell.method, self.spaces)

    def _find(self, cell: Cell) -> Entry | None:
        key = key_of(cell.task, cell.method, self._space(cell), self.tuning)
        return self.archive.find(cell.task.name, cell.method.label, key)

    def _make(self, cell: Cell, data: Task) -> Entry:
        entry = run_method(cell.task, cell.method, self._space(cell), data, self.tuning)
        self.archive.add(entry)
        return entry

    def _say(self, entry: Entry, progress: str, console: Console) -> None:
        told = f"refused: {entry.refused}" if entry.refused else ""
        if not told:
            chosen = ", ".join(f"{k} {v:g}" for k, v in entry.settings[entry.selected].items())
            edges = f" (at the edge: {', '.join(entry.edges)})" if entry.edges else ""
            told = f"{chosen}{edges}, {entry.seconds:.0f} s"
        line = f"{progress} {entry.task}: {entry.method}: {told}"
        _print(console, line)

    def _show(self, methods: Sequence[Method], console: Console) -> None:
        """Shows the places of methods, and writes the table and the figure."""
        standing = Standing.of(self.tasks, self.archive, self.tuning, keys=self._keys(methods))
        titles = [method.label for method in methods]
        for title in titles:
            _print(console, f"\n{title}", style="bold")
            for line in describe_place(standing, title):
                _print(console, line)
        # references are the rows that others are compared with
        shown = [*titles, *(standing.reference(task) for task in standing.tasks)]
        table = standing.table("rounds", shown)
        _print(console, f"\n{format_tables(table, 'text')}")
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            write(self.out / "table.tex", format_tables(table, "latex") + "\n")
        files = [self.out / "table.tex"]
        picture = standing.picture("rounds", titles[0])
        files += save([picture] if picture else [], self.out)
        _print(console, "\n" + "\n".join(map(str, files)))

    def write_page(self) -> Path:
        """Writes the page of all archived results on the tasks, and returns its file."""
        file = self.out / "index.html"
        with writing(file):
            self.out.mkdir(parents=True, exist_ok=True)
            write(file, render(self.standing()))
        return file


def _print(console: Console, text: str, **style: Any) -> None:
    # titles and messages of users may have brackets, which rich would take for markup
    console.print(text, highlight=False, soft_wrap=True, markup=False, **style)


class _Data:
    """Makes the data of tasks, and keeps those of the last one."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.made: dict[str, Task | None] = {}

    def of(self, task: BenchTask) -> Task | None:
        """Returns the data of a task; None, after a message, where they are not there."""
        if task.name not in self.made:
            # one task's data at a time, but a task that failed is not tried again
            lost: dict[str, Task | None] = {
                name: None for name, data in self.made.items() if data is None
            }
            try:
                self.made = lost | {task.name: make_data(task)}
            except InvalidInput as error:
                self.made = lost | {task.name: None}
                _print(self.console, f"{task.name} is left out: {error}")
        return self.made[task.name]
