"""Runs an archived cell again, and prints how far it is from the archive.

    python again.py FILE [ROUNDS] [SEEDS]

The largest and the mean relative difference of the task's metric over the first rounds of the first
seeds, and whether the traffic is the same.
"""

import sys
from pathlib import Path

import numpy as np

from fedax.benchmark import trials
from fedax.benchmark.archive import Entry
from fedax.benchmark.task import Method, load_tasks
from fedax.experiments.running.setup import set_up_jax


def differences(entry, rounds=None, seeds=None):
    """Returns the largest and the mean relative difference of the metric, and whether bits are
    equal.
    """
    task = load_tasks()[entry.task].selecting  # its metric only
    if rounds is not None:
        task = task.model_copy(update={"experiment": task.experiment | {"rounds": rounds}})
    records = entry.records[:seeds]
    runs = trials.run_settings(
        task,
        Method.parse(entry.method.lower()),
        [entry.settings[entry.selected]],
        trials.make_data(task),
        [run.seed for run in records],
    )
    found = []
    for run, before in zip(runs, records, strict=True):
        now, then = (one.scalars[task.metric].astype(float) for one in (run, before))
        then = then[: len(now)]
        found.extend(np.abs(now - then) / np.maximum(np.abs(then), 1e-12))
    same = all(
        (run.bits == old.bits[: len(run.bits)]).all()
        for run, old in zip(runs, records, strict=True)
    )
    return max(found), float(np.mean(found)), same


if __name__ == "__main__":
    set_up_jax(1)
    numbers = [int(text) for text in sys.argv[2:]]
    print(*differences(Entry.from_bytes(Path(sys.argv[1]).read_bytes()), *numbers))
