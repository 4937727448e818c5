"""Finds the targets of benchmark tasks: what the tuned reference reaches in half of the rounds.

    python docs/benchmark/targets.py TASK...

A target is the median over five seeds, which are used for nothing else, of the best value until
then, rounded to three digits towards the easier side. It is printed, to be written into
`targets.toml`.
"""

import math
import statistics
import sys
from collections.abc import Sequence

from fedax.benchmark.command import Bench
from fedax.benchmark.run import Score, Tuning, has_diverged, loss_of, make_data, tune
from fedax.benchmark.task import BenchTask
from fedax.results import Record

REFERENCE = Tuning(screening=(2000, 2001), deciding=(), reported=tuple(range(2100, 2105)))
"""All settings run on two seeds, because a target is found only once."""


def half_way(task: BenchTask, run: Record) -> float:
    """Returns the best loss of a run in half of the rounds; a run that diverged is the worst."""
    metric = task.target.metric
    half = task.sections["rounds"] / 2
    if has_diverged(run, metric):
        return math.inf
    return min(loss_of(run, metric, i) for i, done in enumerate(run.rounds) if done <= half)


def target_of(task: BenchTask, records: Sequence[Record]) -> float:
    """Returns the target that follows from the reference's reported runs."""
    loss = statistics.median(half_way(task, run) for run in records)
    places = 2 - math.floor(math.log10(abs(loss)))
    return abs(round(math.ceil(loss * 10**places) / 10**places, max(places, 0)))


def find_target(task: BenchTask, tuning: Tuning = REFERENCE) -> float:
    """Returns the target of a task."""
    method = task.reference

    def score(records: Sequence[Record]) -> Score:
        return (statistics.fmean(half_way(task, run) for run in records),)

    space = Bench.open("full", [task.name]).space(task, method)
    *_, records = tune(task, method, space, make_data(task), tuning, score)
    return target_of(task, records)


if __name__ == "__main__":
    for each in Bench.open("full", sys.argv[1:]).tasks:
        print(f"[{each.name}]\nvalue = {find_target(each):g}")
