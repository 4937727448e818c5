"""A thousand runs on new tasks in one process, and thousands of rounds with all observers: neither
maps nor memory pile up.

python tests/faults/many.py [RUNS] [ROUNDS]
"""

import contextlib
import inspect
import os
import sys
import time
from pathlib import Path

import numpy as np

import fedax

RISE = 1.1
"""The most that the second half of the runs may need, as a multiple of the first."""
MARGIN = 10.0
"""Megabytes that the second half of the rounds may add beyond the numbers that are recorded."""


def task(number):
    """A problem with a loss of its own, which nothing compiled before fits."""
    rng = np.random.default_rng(number)
    clients = [{"x": rng.normal(size=(5 + k, 3)), "y": rng.normal(size=5 + k)} for k in range(4)]
    return fedax.Task(
        {"w": np.zeros(3)}, lambda p, e: (1 + number) * (e["x"] @ p["w"] - e["y"]) ** 2, clients
    )


def held():
    """Memory maps and megabytes of this process."""
    maps = len(Path("/proc/self/maps").read_bytes().splitlines())
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return maps, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def runs(count):
    """Whether many runs stay where the first were."""
    begun = time.monotonic()
    seen = []
    schedule = fedax.Schedule(cohort=2, steps=2, batch_size=2)
    solver = fedax.SGD(0.001)
    for number in range(count):
        fedax.run(fedax.FedAvg(), task(number), rounds=3, solver=solver, schedule=schedule)
        seen.append(held())
        if (number + 1) % max(count // 10, 1) == 0:
            print(
                f"{number + 1:6} runs {seen[-1][0]:7} maps {seen[-1][1]:8.0f} MB "
                f"{time.monotonic() - begun:8.0f} s",
                flush=True,
            )
    half = count // 2
    (maps, memory), (later_maps, later) = (np.max(part, 0) for part in (seen[:half], seen[half:]))
    print(
        f"most in the first half {maps:.0f} maps, {memory:.0f} MB; in the second "
        f"{later_maps:.0f} maps, {later:.0f} MB"
    )
    return later_maps <= RISE * maps and later <= RISE * memory


def watching(task):
    """All observers that need no argument and can look at a task as it is."""
    kinds = [
        kind
        for kind in vars(fedax.observe).values()
        if inspect.isclass(kind) and not inspect.isabstract(kind)
    ]
    found = []
    for kind in kinds:
        with contextlib.suppress(fedax.core.InvalidInput, TypeError):
            observer = kind()
            observer.check(task)
            found.append(observer)
    return found


def rounds(count):
    """Whether the memory of one long run grows by the numbers that it records and no more."""
    begun = time.monotonic()
    seen = {}
    task = fedax.task("synthetic", clients=4)
    observers = watching(task)

    def look(progress):
        if progress.round in (count // 2, count):
            seen[progress.round] = held()
            print(
                f"{progress.round:6} rounds {seen[progress.round][1]:8.0f} MB "
                f"{time.monotonic() - begun:8.0f} s",
                flush=True,
            )

    history = fedax.run(
        fedax.DFedAvgM(graph=fedax.Graph.ring(4)),
        task,
        rounds=count,
        solver=fedax.SGD(0.01),
        schedule=fedax.Schedule(steps=1, batch_size="full"),
        observe=observers,
        progress=look,
    )
    _, middle = seen[count // 2]
    _, end = seen[count]
    recorded = sum(np.asarray(values).nbytes for values in history.metrics.values()) / 2**20
    print(
        f"{len(observers)} observers, {recorded:.1f} MB recorded; the second half of the rounds "
        f"added {end - middle:.1f} MB"
    )
    return end - middle <= recorded + MARGIN


if __name__ == "__main__":
    counts = [int(word) for word in sys.argv[1:]] + [1000, 16_000][len(sys.argv) - 1 :]
    sys.exit(
        0 if all([not counts[0] or runs(counts[0]), not counts[1] or rounds(counts[1])]) else 1
    )
