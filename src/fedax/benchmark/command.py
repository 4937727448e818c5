"""The work of `fedax bench`."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedax.algorithms import algorithm_class, algorithm_classes
from fedax.benchmark.run import COSTS, STANDING, Tuning, key_of, make_data, run_method
from fedax.benchmark.spaces import Space, read_spaces, space_of
from fedax.benchmark.standing import (
    ARCHIVE,
    compare_methods,
    first_results,
    gain_text,
    verdict_of,
)
from fedax.benchmark.task import (
    FAMILIES,
    FOLDER,
    BenchTask,
    choose_tasks,
    families_of,
    load_tasks,
    parse_method,
)
from fedax.core import InvalidInput
from fedax.experiments.config.sections import AlgorithmSection, check_labels, check_names
from fedax.utils.files import write


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
        tables = _read(self.table, self.archive)
        return first_results(tables) if tables else pd.DataFrame(columns=["task", "method", "key"])

    def space(self, task: BenchTask, method: AlgorithmSection) -> Space:
        """Returns the search space of a method on a task."""
        fixed = task.options_for(method)
        return space_of(algorithm_class(method.name), task.target.learning_rate, fixed, self.spaces)

    def show_tasks(self) -> None:
        """Lists the tasks with their targets."""
        rows = pd.DataFrame([dict(task.target) for task in self.tasks])
        rows.index = [task.name for task in self.tasks]
        print(rows[["family", "tier", "metric", "value"]].to_string(na_rep="not set"))

    def run(self, names: Sequence[str]) -> None:
        """Runs methods on the tasks that fit them, and says where they stand; results that are
        there already stay.

        Args:
            names: of the methods, or `all`.
        """
        everything = list(names) == ["all"]
        methods = [parse_method(name) for name in (algorithm_classes() if everything else names)]
        labels = [method.shown() for method in methods]
        check_labels(labels)
        kinds = [algorithm_class(method.name).__name__.lower() for method in methods]
        check_names("--spaces", self.spaces, [*algorithm_classes(), *kinds])
        for method in methods:
            fitting = [task for task in self.tasks if task.fits(method)]
            if not fitting and not everything:
                families = ", ".join(dict.fromkeys(task.target.family for task in self.tasks))
                raise InvalidInput.because(
                    method.shown(),
                    f"fits tasks of {', '.join(families_of(method))}; asked for: {families}",
                )
            for task in fitting:  # what is missing shows before anything runs
                if task.target.value is None:
                    raise InvalidInput.because(f"task {task.name}", "has no target")
                space = self.space(task, method)
            if not everything:
                # the range of learning rates, the first, is the task's
                ranges = [
                    f", {key} [{one.low:g}, {one.high:g}]" for key, one in list(space.items())[1:]
                ]
                print(f"{method.shown()} searches learning_rate{''.join(ranges)}.")
        for task in self.tasks:
            if fitting := [method for method in methods if task.fits(method)]:
                # results of the reference may be of an earlier version of the task
                self._run_task(task, [task.reference, *fitting])
        if not everything:
            self._show(labels)

    def _run_task(self, task: BenchTask, methods: Sequence[AlgorithmSection]) -> None:
        data = None
        for method in methods:
            space = self.space(task, method)
            # a method may run under several titles
            cell = task.name, method.shown(), key_of(task, method, space, self.tuning)
            if cell in self.results().set_index(["task", "method", "key"]).index:
                continue
            try:
                data = data or make_data(task)
                rows = run_method(task, method, space, data, self.tuning)
            except InvalidInput as error:
                # data that are not there, or a method with two phases on an asynchronous server
                print(f"{task.name}: {method.shown()}: left out: {error}")
                continue
            first = rows.iloc[0]
            edges = first["edges"] or "none"
            print(f"{task.name}: {method.shown()}: {first['settings']} (at the edge: {edges})")
            # earlier results of the same title are of other settings
            rows = first_results([rows, *_read(self.table)])
            write(self.table, rows.to_csv(index=False, float_format="%.6g"))

    def compare(self) -> dict[str, pd.DataFrame]:
        """Returns `compare_methods` by family, over the tasks that have results."""
        results = self.results()
        return {
            family: compare_methods(results, own)
            for family in FAMILIES
            if (
                own := [
                    task
                    for task in self.tasks
                    if task.target.family == family and task.name in set(results["task"])
                ]
            )
        }

    def _show(self, labels: list[str]) -> None:
        """Says where methods stand, and writes the table of all."""
        frames = self.compare()
        if not frames:
            return
        for family, frame in frames.items():
            for label in frame.index.intersection(labels):
                row = frame.loc[label].to_dict()
                about = f"among {len(frame)} methods, {family}, {row['tasks']} task(s)"
                print(f"\n{label} {about}; gains over the reference:")
                for cost in COSTS:
                    area = row.get(f"area_{cost}")
                    if area is None:
                        continue
                    place = 1 + (frame[f"area_{cost}"] > area).sum()
                    text = f"  {cost}: area {area:.2f} (place {place})"
                    if gain := gain_text(row, cost):
                        verdict = verdict_of(row, cost) or "not distinguishable"
                        if math.isinf(row[f"detectable_{cost}"]):
                            verdict = "undecided: so few runs prove nothing"
                        text += f", gain {gain}, corrected p {row[f'p_{cost}']:.2g}: {verdict}"
                    print(text)
        table = pd.concat(frames, names=["family", "method"])
        write(self.out / "methods.csv", table.to_csv(float_format="%.4g"))
        print(f"\nThe results are in {self.out}.")


def _read(*files: Path | None) -> list[pd.DataFrame]:
    """Returns the tables that exist."""
    # a key may look like a number
    return [pd.read_csv(file, dtype={"key": str}) for file in files if file and file.exists()]
