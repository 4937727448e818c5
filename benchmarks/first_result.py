"""Seconds to import fedax, and from there to the demo's first panel, in new processes: python
benchmarks/first_result.py.

The first panel is FedAvg on the digits, with the demo's task, model, observers and schedule, for
ten rounds. Cold: the cache of compiled programs is empty; warm: filled by the process before.
`Python` is a script that calls `fedax.keep_programs()` and has one device; `command line` has a
device for each core, whose programs are not kept. Nothing else should run meanwhile."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# the name is asked for, as imports are lazy
IMPORT = (
    "import time; begin = time.perf_counter(); import fedax; fedax.run; "
    "print(time.perf_counter() - begin)"
)
FIRST = """
import time
import fedax
fedax.run
begin = time.perf_counter()
from fedax.experiments.running.setup import set_up_jax
from fedax.experiments.running import demo
SET_UP()
plan = demo.experiments()[0].plan()
history = fedax.run(plan.algorithms["FedAvg"], plan.task, **(plan.arguments_of("FedAvg") | {"rounds": 10}))
assert history.outcome.ok and len(history.rounds) > 1
print(time.perf_counter() - begin)
"""
WAYS = {
    "Python": FIRST.replace("SET_UP", "fedax.keep_programs"),
    "command line": FIRST.replace("SET_UP", "set_up_jax"),
}
TARGETS = {"import": 1.5, "Python, cold": 8.0, "Python, warm": 3.0}


def seconds(code: str, cache: Path) -> float:
    """The number that a new process prints."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    found: dict[str, list[float]] = {}
    for _ in range(parser.parse_args().repeat):
        for name, code in [("import", IMPORT), *WAYS.items()]:
            with tempfile.TemporaryDirectory() as folder:
                for state in ("cold", "warm"):
                    found.setdefault(name if code == IMPORT else f"{name}, {state}", []).append(
                        seconds(code, Path(folder))
                    )
    print("| | median, s | of all | target |\n| --- | ---: | --- | ---: |")
    for name, values in found.items():
        every = ", ".join(f"{value:.2f}" for value in values)
        print(f"| {name} | {statistics.median(values):.2f} | {every} | {TARGETS.get(name, '')} |")


if __name__ == "__main__":
    main()
