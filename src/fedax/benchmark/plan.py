"""The plan of a run: its cells in a useful order, and how long they will take."""

import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedax.benchmark.archive import Archive
from fedax.benchmark.spaces import Space, unit_points
from fedax.benchmark.task import BenchTask, Method
from fedax.benchmark.trials import Tuning, run_settings
from fedax.core import InvalidInput, Task
from fedax.utils.files import read_text, write, writing

TIMINGS = "timings.json"
"""File with the seconds that short runs predict, beside the results."""
FIRST = (
    *("fedavg", "dsgd", "fedprox", "scaffold", "fedadam", "feddyn", "fedavgm", "fedyogi"),
    *("fednova", "ditto", "fedrep", "perfedavg", "dfedavgm", "gradienttracking"),
)
"""Methods that run first, because most comparisons name them."""
WAVE = 8
"""Methods that finish all tasks before the next ones begin."""

Seconds = dict[tuple[str, str], float]
"""Of one core, by task and title of the method."""


class Cell(NamedTuple):
    """One method on one task."""

    task: BenchTask
    method: Method

    @property
    def key(self) -> tuple[str, str]:
        """The names of task and method."""
        return self.task.name, self.method.label


def cells_of(tasks: Sequence[BenchTask], methods: Sequence[Method]) -> list[Cell]:
    """Returns the cells of a run in waves of methods: whole families of the first methods are done
    before the others begin.

    Within a wave the tasks come one after the other, so that each makes its data once.
    """
    places = {name: i for i, name in enumerate(FIRST)}
    ranked = sorted(methods, key=lambda method: places.get(method.name, len(FIRST)))
    # the well-known methods are one wave, the others waves of `WAVE`
    split = sum(method.name in places for method in ranked)
    waves = [ranked[:split]] + [ranked[i : i + WAVE] for i in range(split, len(ranked), WAVE)]
    return [
        Cell(task, method)
        for wave in waves
        for task in tasks
        for method in wave
        if task.fits(method)
    ]


def archived_seconds(archive: Archive, tasks: Iterable[BenchTask]) -> Seconds:
    """Returns the seconds of archived results, also of earlier versions of a task."""
    return {
        (entry.task, entry.method): entry.seconds
        for task in tasks
        for entry in archive.entries(task.name)
        if not entry.refused
    }


def estimate(cells: Sequence[Cell], known: Mapping[tuple[str, str], float]) -> Seconds:
    """Returns the seconds of cells: known ones as they are, others as a factor of the task times
    one of the method.

    The factors fit the known seconds by least squares in logarithms. A task or method of which
    nothing is known has the mean of the others.
    """
    # tasks, then methods, of the known cells
    names = [list(dict.fromkeys(key[place] for key in known)) for place in (0, 1)]
    # a row for each known cell, with a column for each task and method
    rows = np.zeros((len(known), len(names[0]) + len(names[1])))
    for row, (task, label) in zip(rows, known, strict=True):
        row[[names[0].index(task), len(names[0]) + names[1].index(label)]] = 1.0
    logs = np.log(np.maximum(list(known.values()), 1.0))
    # the factors of tasks and methods are only known up to a constant: the shortest solution
    fitted = np.linalg.lstsq(rows, logs, rcond=None)[0] if known else np.zeros(0)
    parts = np.split(fitted, [len(names[0])])
    factors = [
        dict(zip(some, part.tolist(), strict=True)) for some, part in zip(names, parts, strict=True)
    ]
    usual = [float(part.mean()) if part.size else 0.0 for part in parts]
    return {
        key: known[key]
        if key in known
        else math.exp(sum(factors[i].get(key[i], usual[i]) for i in (0, 1)))
        for key in (cell.key for cell in cells)
    }


def needed(cells: Sequence[Cell], known: Seconds) -> Iterator[Cell]:
    """Yields the cells whose timing an estimate lacks: each task with its reference, and each
    method on the first task that it fits.
    """
    # tasks and methods with a timing; both sets grow with every cell that is yielded
    tasks, methods = {task for task, _ in known}, {label for _, label in known}
    # references come first: they tell how long a task takes
    for cell in sorted(cells, key=lambda cell: cell.method.name != cell.task.reference):
        is_reference = cell.method.name == cell.task.reference
        if cell.task.name not in tasks if is_reference else cell.method.label not in methods:
            tasks.add(cell.task.name)
            methods.add(cell.method.label)
            yield cell


def time_cell(cell: Cell, space: Space, data: Task, tuning: Tuning) -> float:
    """Returns the seconds of one core that a cell will take, from runs of a few rounds; 0 for a
    method that the task refuses.
    """
    task, method = cell
    # the first draw stands for the second one, which depends on results
    settings = space.settings(unit_points(len(space.ranges), tuning.settings, tuning.draw))
    # both draws on the screening seeds, and half of the settings on the deciding ones
    draws = 2 + len(tuning.deciding) / len(tuning.screening)
    seconds = 0.0
    # (what is observed, settings, seeds, how often the stage runs)
    stages = (
        (task.selecting, settings, tuning.screening, draws),
        (task, settings[:1], tuning.reported, 1.0),
    )
    for observed, some, seeds, repeats in stages:
        few, rounds = int(task.experiment.get("observe_every", 1)), int(task.experiment["rounds"])
        # CPU time, so that other processes on the machine do not count
        spent = [time.process_time()]
        # the first of each length compiles; an asynchronous server does for every length
        for short in (few, few, 4 * few, 4 * few):
            part = observed.model_copy(
                update={"experiment": observed.experiment | {"rounds": short}}
            )
            try:
                run_settings(part, method, some, data, seeds)
            except InvalidInput:
                return 0.0
            spent.append(time.process_time())
        # each length runs twice: the second time without compilation
        first, again, _, longer = (end - begin for begin, end in itertools.pairwise(spent))
        # the longer run has 3 * few more rounds, and the same fixed cost
        a_round = max(longer - again, 0.0) / (3 * few)
        # compilation once, then a run of `few` rounds and the rest of its rounds, each time
        seconds += first - again + repeats * (again + a_round * (rounds - few))
    return seconds


def read_timings(folder: Path) -> Seconds:
    """Reads the timings of a folder; none if there is no such file."""
    file = folder / TIMINGS
    if not file.exists():
        return {}
    told = json.loads(read_text(file))
    return {(task, label): each for task, row in told.items() for label, each in row.items()}


def write_timings(folder: Path, known: Seconds) -> None:
    """Writes timings, by task and method."""
    told: dict[str, dict[str, float]] = {}
    for (task, label), seconds in sorted(known.items()):
        told.setdefault(task, {})[label] = round(seconds, 1)
    with writing(folder / TIMINGS):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / TIMINGS, json.dumps(told, indent=1) + "\n")


def hours_by(place: int, seconds: Seconds) -> list[tuple[str, int, float]]:
    """Returns names, numbers of cells and core hours by task (0) or method (1), the longest
    first.
    """
    rows: dict[str, list[float]] = {}
    for key, each in seconds.items():
        rows.setdefault(key[place], []).append(each)
    told = [(name, len(each), sum(each) / 3600) for name, each in rows.items()]
    return sorted(told, key=lambda row: -row[2])
