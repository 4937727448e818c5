"""The runs and the picture of docs/reproduction/local-gd.md, "Large steps": Local GD on separable and on other
data, by H and step size.

python large_steps.py run     the runs that large_steps.csv beside this file lacks
python large_steps.py draw    the picture and the table, from large_steps.csv
"""

import csv
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

import fedax
from fedax.observe import Objective
from fedax.results.drawing import Picture, curves, save
from fedax.theory.constants import closed_form

HERE = Path(__file__).parent
RUNS = HERE / "large_steps.csv"
COLUMNS = ("data", "interval", "step size", "communications", "objective")
WORKERS = 20
COMMUNICATIONS = 512
EVERY = 4
INTERVALS = (1, 4, 16, 64)
SCALES = {"1/(4LH)": None, "1/L": 1.0, "16/L": 16.0, "64/L": 64.0}
"""Step sizes: the theorem's largest one, and some that do not depend on H."""
SETS = ("mushrooms", "a5a")
SETTINGS = tuple(product(SETS, INTERVALS, SCALES))
LEVELS = {"mushrooms": (0.1, 0.01, 0.001), "a5a": (0.4, 0.35, 0.33)}


def task_of(name: str) -> fedax.Task:
    """Returns logistic regression without l2 on contiguous blocks of the file, as in the paper on
    Local GD."""
    return fedax.task(name, l2=0.0, clients=WORKERS)


def read_runs() -> list[dict[str, str]]:
    """Returns the rows of the complete runs in large_steps.csv."""
    if not RUNS.exists():
        return []
    with RUNS.open() as file:
        rows = list(csv.DictReader(file))
    lengths = Counter(map(setting_of, rows))
    return [row for row in rows if lengths[setting_of(row)] == COMMUNICATIONS // EVERY + 1]


def setting_of(row: dict[str, str]) -> tuple[str, int, str]:
    return row["data"], int(row["interval"]), row["step size"]


def run_all() -> None:
    """Runs the settings that large_steps.csv lacks."""
    rows = read_runs()
    done = set(map(setting_of, rows))
    with RUNS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        file.flush()
        for name, interval, label in SETTINGS:
            if (name, interval, label) in done:
                continue
            task = task_of(name)
            scale = SCALES[label]
            smoothness = float(np.max(closed_form(task)))
            rate = 1 / (4 * smoothness * interval) if scale is None else scale / smoothness
            history = fedax.run(
                fedax.LocalGD(),
                task,
                solver=fedax.SGD(rate),
                schedule=fedax.Schedule(steps=interval, batch_size="full", weights="equal"),
                rounds=COMMUNICATIONS,
                observe=[Objective()],
                observe_every=EVERY,
            )
            for i, value in enumerate(history.metrics["objective"]):
                row = name, interval, label, i * EVERY, f"{value:.6g}"
                writer.writerow(dict(zip(COLUMNS, row, strict=True)))
            file.flush()


def draw() -> None:
    rows = pd.read_csv(RUNS)
    for setting, run in rows.groupby(["data", "step size", "interval"]):
        # communications until the objective is at most a level
        below = [run["communications"][run["objective"] <= level] for level in LEVELS[setting[0]]]
        print(*setting, [int(found.min()) if len(found) else -1 for found in below])
    rows = rows[rows["communications"] > 0].assign(line="H = " + rows["interval"].astype(str))
    figure = curves(
        rows, "communications", "objective", "line", ["data", "step size"],
        log=True,
    )  # fmt: skip
    save([Picture("large-steps", figure, "Local GD by H and step size")], HERE, ["png"])


if __name__ == "__main__":
    {"run": run_all, "draw": draw}[sys.argv[1]]()
