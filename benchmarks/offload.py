"""SCAFFOLD with the clients' memories on the device, on the host and on disk: a round's time, and
the most memory.

python benchmarks/offload.py [--clients 100000 1000000] [--places device host disk]

Softmax of 60 features and 10 classes, 610 parameters, cohorts of ten clients with two examples
each. Every row is a new process of 4,196 rounds: at most 41,960 clients have a row in the stores.
On the device everybody has: 2.4 GB for 10^6 clients."""

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np

COHORT = 10
ROUNDS = 256
FEATURES = 60
CLASSES = 10


def measure(clients: int, place: Any) -> dict[str, float]:
    """Milliseconds of a round in calls of many and of one, and the most memory of the process in GB
    before the run and in all."""
    import fedax
    from fedax.core import Ragged
    from fedax.data import FederatedData
    from fedax.engine.driver.grid import Grid
    from fedax.engine.driver.options import RunOptions

    rng = np.random.default_rng(0)
    x = rng.standard_normal((2 * clients, FEATURES), np.float32)
    examples = Ragged.flat(
        {"x": x, "y": rng.integers(0, CLASSES, 2 * clients).astype(np.int32)}, np.full(clients, 2)
    )
    start = {"W": np.zeros((FEATURES, CLASSES), np.float32), "b": np.zeros(CLASSES, np.float32)}

    def loss(params: Any, data: Any, key: Any) -> Any:
        scores = data["x"] @ params["W"] + params["b"][None]
        return -jax.nn.log_softmax(scores)[jax.numpy.arange(len(data["y"])), data["y"]]

    task = fedax.Task(lambda key: start, loss, FederatedData.from_arrays(examples))
    engine = fedax.Simulation(devices=1, memory=place)
    options = RunOptions.of(
        {"schedule": fedax.Schedule(cohort=COHORT, batch_size=2), "engine": engine}
    )
    options = dataclasses.replace(options, rounds=ROUNDS, observe_every=ROUNDS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    grid = Grid([fedax.SCAFFOLD()], task, [0], options)
    program = grid.program
    state = grid.init()
    done = 0

    def rounds(count: int, calls: int) -> float:
        nonlocal state, done
        times = []
        for _ in range(calls):
            begun = time.perf_counter()
            state, _ = program.advance(state, done, count)
            jax.block_until_ready(jax.tree.leaves(state[0]))
            times.append((time.perf_counter() - begun) / count)
            done += count
        return 1e3 * float(np.median(times))

    rounds(ROUNDS, 1)
    together = rounds(ROUNDS, 15)
    single = rounds(1, 100)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"together": together, "single": single, "before": before, "most": most, "rounds": done}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10**5, 10**6])
    parser.add_argument("--places", nargs="+", default=["device", "host", "disk"])
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        clients, place = given.measure
        print(json.dumps(measure(int(clients), place)))
        return
    names = (
        "clients",
        "memory",
        "256 rounds in a call, ms a round",
        "one in a call of its own, ms",
        "most memory, GB",
        "before, GB",
    )
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)
    for clients in given.clients:
        for place in given.places:
            command = [sys.executable, __file__, "--measure", str(clients), place]
            found = json.loads(
                subprocess.run(
                    command, check=True, capture_output=True, text=True
                ).stdout.splitlines()[-1]
            )
            cells = (
                f"{found['together']:.3f} | {found['single']:.2f} | {found['most']:.2f} | "
                f"{found['before']:.2f}"
            )
            print(f"| {clients:,} | {place} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
