"""The work of `fedax bench`."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from fedax.algorithms import algorithm_classes
from fedax.benchmark.run import COSTS, STANDING, Tuning, key_of, make_data, run_method
from fedax.benchmark.spaces import Space, read_spaces, space_of
from fedax.benchmark.standing import (
    ARCHIVE,
    compare_methods,
    gain_text,
    read_results,
    verdict_of,
)
from fedax.benchmark.task import FAMILIES, FOLDER, BenchTask, Method, choose_tasks, load_tasks
from fedax.core import InvalidInput
from fedax.utils.files import write, writing


@dataclasses.dataclass(frozen=True)
class Bench:
    """Tasks and search spaces, ready to run.

    Args:
        tasks: those that are asked for.
        spaces: by class.
        out: the folder for results.
        archive: a table of results to compare with; None for those in `out` alone.
        tuning: the budget.
    """

    tasks: Sequence[BenchTask]
    spaces: Mapping[str, Mapping[str, Any]]
    out: Path
    archive: Path | None = ARCHIVE
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
        known = read_spaces() | (read_spaces(spaces) if spaces else {})
        tasks = choose_tasks(load_tasks(folder or FOLDER), tier, names)
        # tasks of your own have no archive
        return cls(tasks, known, out, None if folder else ARCHIVE)

    @property
    def table(self) -> Path:
        """The table of results in `out`."""
        return self.out / "results.csv"

    def results(self) -> pd.DataFrame:
        """Returns all results: those in `out` come before the archive's."""
        files = [file for file in (self.table, self.archive) if file and file.exists()]
        return read_results(*files)

    def space(self, task: BenchTask, method: Method) -> Space:
        """Returns the search space of a method on a task."""
        fixed = task.options_for(method)
        return space_of(method.kind, task.target.learning_rate, fixed, self.spaces)

    def show_tasks(self, console: Console) -> None:
        """Lists the tasks with their targets."""
        columns = ["family", "tier", "metric", "value"]
        rows = {task.name: task.target.model_dump(include=set(columns)) for task in self.tasks}
        _print(console, pd.DataFrame.from_dict(rows, "index")[columns].to_string(na_rep="not set"))

    def run(self, names: Sequence[str], console: Console) -> None:
        """Runs methods on the tasks that fit them, and says where they stand; results that are
        there already stay.

        Args:
            names: of the methods, or `all`.
            console: for what is done.
        """
        everything = [name.lower() for name in names] == ["all"]
        methods = [Method.parse(name) for name in (algorithm_classes() if everything else names)]
        for method in methods:
            fitting = [task for task in self.tasks if task.fits(method)]
            if not fitting and not everything:
                families = ", ".join(dict.fromkeys(task.target.family for task in self.tasks))
                reason = f"fits tasks of {', '.join(method.families)}; asked for: {families}"
                raise InvalidInput.because(method.label, reason)
            for task in fitting:  # what is missing shows before anything runs
                task.required_target()
                space = self.space(task, method)
            if fitting and not everything:
                ranges = [f"{key} [{one.low:g}, {one.high:g}]" for key, one in space.items()]
                _print(console, f"{method.label} searches {', '.join(ranges)}.")
        if len({method.label for method in methods}) < len(methods):
            reason = "two of the methods have one title"
            raise InvalidInput.because("methods", reason, "Give each its own label=....")
        for task in self.tasks:
            self._run_task(task, [method for method in methods if task.fits(method)], console)
        if not everything:
            self._show([method.label for method in methods], console)

    def _run_task(self, task: BenchTask, methods: Sequence[Method], console: Console) -> None:
        known, data = self.results(), None
        keys = set(known.loc[known["task"] == task.name, "key"])
        for method in methods:
            space = self.space(task, method)
            if key_of(task, method, space, self.tuning) in keys:
                continue
            try:
                data = data or make_data(task)
                rows = run_method(task, method, space, data, self.tuning)
            except InvalidInput as error:
                # data that are not there, or a method with two phases on an asynchronous server
                _print(console, f"{task.name}: {method.label}: left out: {error}")
                continue
            first = rows.iloc[0]
            edges = f" (at the edge: {first['edges']})" if first["edges"] else ""
            _print(console, f"{task.name}: {method.label}: {first['settings']}{edges}")
            if self.table.exists():
                # earlier results of the same title are of other settings
                old = pd.read_csv(self.table)
                is_same = (old["task"] == task.name) & (old["method"] == method.label)
                rows = pd.concat([old[~is_same], rows])
            with writing(self.out):
                self.out.mkdir(parents=True, exist_ok=True)
                write(self.table, rows.to_csv(index=False, float_format="%.6g"))

    def compare(self) -> dict[str, pd.DataFrame]:
        """Returns `compare_methods` by family, over the tasks that have results."""
        results = self.results()
        known = [task for task in self.tasks if task.name in set(results["task"])]
        return {
            family: compare_methods(results, own)
            for family in FAMILIES
            if (own := [task for task in known if task.target.family == family])
        }

    def _show(self, labels: list[str], console: Console) -> None:
        """Says where methods stand, and writes the table of all."""
        frames = self.compare()
        for family, frame in frames.items():
            for label in frame.index.intersection(labels):
                row = frame.loc[label].to_dict()
                _print(console, f"\n{label} among {len(frame)} methods, {family}:")
                for cost in COSTS:
                    gain = gain_text(row, cost) or "the reference"
                    verdict = verdict_of(row, cost) or "not distinguishable"
                    if math.isinf(row[f"detectable_{cost}"]):
                        verdict = "undecided: so few runs prove nothing (--tier standard has more)"
                    area = row[f"area_{cost}"]
                    _print(console, f"  {cost}: area {area:.2f}, relative speed {gain}, {verdict}")
        table = pd.concat(frames, names=["family", "method"])
        write(self.out / "methods.csv", table.to_csv(float_format="%.4g"))
        _print(console, f"\n{self.table}\n{self.out / 'methods.csv'}")


def _print(console: Console, text: str) -> None:
    # titles and messages of users may have brackets, which rich would take for markup
    console.print(text, highlight=False, soft_wrap=True, markup=False)
