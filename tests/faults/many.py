"""A thousand runs on new tasks in one process: memory maps and memory stay where they were after the first few hundred.

python tests/faults/many.py [RUNS]
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import fedax

RISE = 1.1
"""The most that the second half of the runs may need, as a multiple of the first."""


def task(number):
    """A problem with a loss of its own, which nothing compiled before fits."""
    rng = np.random.default_rng(number)
    clients = [{"x": rng.normal(size=(5 + k, 3)), "y": rng.normal(size=5 + k)} for k in range(4)]
    return fedax.tasks.from_loss(lambda p, e: (1 + number) * (e["x"] @ p["w"] - e["y"]) ** 2, {"w": np.zeros(3)}, clients)


def held():
    """Memory maps and megabytes of this process."""
    maps = len(Path("/proc/self/maps").read_bytes().splitlines())
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return maps, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main():
    count, begun, seen = int(sys.argv[1]) if len(sys.argv) > 1 else 1000, time.monotonic(), []
    schedule, solver = fedax.Schedule(cohort=2, steps=2, batch_size=2), fedax.SGD(0.001)
    for number in range(count):
        fedax.run(fedax.FedAvg(), task(number), rounds=3, solver=solver, schedule=schedule)
        seen.append(held())
        if (number + 1) % max(count // 10, 1) == 0:
            print(
                f"{number + 1:6} runs {seen[-1][0]:7} maps {seen[-1][1]:8.0f} MB {time.monotonic() - begun:8.0f} s",
                flush=True,
            )
    half = count // 2
    (maps, memory), (later_maps, later) = (np.max(part, 0) for part in (seen[:half], seen[half:]))
    print(f"most in the first half {maps:.0f} maps, {memory:.0f} MB; in the second {later_maps:.0f} maps, {later:.0f} MB")
    sys.exit(int(later_maps > RISE * maps or later > RISE * memory))


if __name__ == "__main__":
    main()
