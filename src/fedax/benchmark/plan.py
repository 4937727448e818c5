"""The plan of a run: its cells in a useful order."""

from collections.abc import Sequence
from typing import NamedTuple

from fedax.benchmark.task import BenchTask, Method

FIRST = (
    *("fedavg", "dsgd", "fedprox", "scaffold", "fedadam", "feddyn", "fedavgm", "fedyogi"),
    *("fednova", "ditto", "fedrep", "perfedavg", "dfedavgm", "gradienttracking"),
)
"""Methods that run first, because most comparisons name them."""
WAVE = 8
"""Methods that finish all tasks before the next ones begin."""


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
