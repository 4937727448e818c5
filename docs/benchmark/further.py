"""Runs what the archive has selected on further seeds, or on another draw of the data.

    python docs/benchmark/further.py FILE DRAW FIRST LAST TASK...    # seeds from FIRST to LAST

Rows are added to FILE method by method, and those that it has are not run again. On another draw
the target is what the reference reaches there in half of the rounds, with its archived setting and
the seeds of `targets.py`.
"""

import dataclasses
import sys
from pathlib import Path

import pandas as pd
from targets import REFERENCE, target_of

from fedax.benchmark.command import Bench
from fedax.benchmark.run import make_data, rows_of, run_settings
from fedax.benchmark.standing import ARCHIVE
from fedax.benchmark.task import BenchTask, parse_method
from fedax.results import Record

RELEASED = {
    "FedBC as released": "fedbc:start=global,dual_momentum=0.5,dual_buffer=shared",
    "FedAWARE as released": "fedaware:normalize=unit,startup=all,feedback=true,ids=mixed",
}
"""Methods whose title is not made of their options."""


def run_task(task: BenchTask, draw: int, seeds: range, file: Path) -> None:
    """Runs all methods that the archive has on a task."""
    of_task = f"task == {task.name!r} and draw == "
    rows = pd.read_csv(ARCHIVE, dtype={"key": str}).query(of_task + "0")
    found = rows.drop_duplicates("method").set_index("method")
    sections = {**task.sections, "task": {**task.sections["task"], "seed": draw}}
    task = dataclasses.replace(task, sections=sections)
    data = make_data(task)

    def run(title: str, seeds: range) -> list[Record]:
        pairs = [pair.split("=") for pair in found.at[title, "settings"].split()]
        setting = {name: float(value) for name, value in pairs}
        method = parse_method(RELEASED.get(title, title.replace(" ", ":", 1)))
        return run_settings(task, method, [setting], data, seeds)

    if draw:
        value = target_of(task, run(task.reference.shown(), REFERENCE.reported))
        target = task.target.model_copy(update={"value": value})
        task = dataclasses.replace(task, target=target)
    there = pd.read_csv(file).query(of_task + str(draw))["method"] if file.exists() else []
    for title in found.index.difference(there):
        print(task.name, task.target.value, title, flush=True)
        about = found.loc[title, ["everyone", "settings", "edges", "key"]]
        made = rows_of(task, run(title, seeds)).assign(method=title, draw=draw, **about)
        made = made.reindex(columns=rows.columns)
        made.to_csv(file, mode="a", header=not file.exists(), index=False, float_format="%.6g")


if __name__ == "__main__":
    draw, first, last = map(int, sys.argv[2:5])
    for each in Bench.open("full", sys.argv[5:]).tasks:
        run_task(each, draw, range(first, last + 1), Path(sys.argv[1]))
