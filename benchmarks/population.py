"""The time of a round against the size of the population, ten clients a round, interleaved.

python benchmarks/population.py [--most 1000000] [--repeats 15] [--only asynchronous]

Beside it stand the time against the cohort, and the seconds and the memory that `FederatedData` and
a task of the largest population take. `--only asynchronous` measures a step of an asynchronous
server with 1,000 clients at work, with the time of the timetable."""

import argparse
import resource
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.core import Ragged
from fedax.data import FederatedData
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions
from fedax.models import Softmax

ROUNDS = 256
COHORT = 10
FEATURES = 10
METHODS = {"FedAvg": fedax.FedAvg(), "SCAFFOLD": fedax.SCAFFOLD()}
SAMPLING = ("uniform", "proportional", "proportional_without_replacement")


def logistic(w: Any, data: Any, key: Any = None) -> Any:
    margin = data["x"] @ w * (2 * data["y"] - 1).astype(w.dtype)
    return jnp.logaddexp(0.0, -margin)


class Runner:
    """One method on one population, compiled and warm."""

    def __init__(
        self, method: Any, sampling: str, clients: int, cohort: int = COHORT, clock: Any = None
    ) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2 * clients, FEATURES)).astype(np.float32)
        train = Ragged.flat({"x": x, "y": (x[:, 0] > 0).astype(np.int32)}, np.full(clients, 2))
        task = fedax.Task(
            lambda key: np.zeros(FEATURES, np.float32), logistic, FederatedData.from_arrays(train)
        )
        server = clock and fedax.Asynchronous(concurrency=1000)
        schedule = fedax.Schedule(
            cohort=cohort, sampling=sampling, batch_size=2, asynchronous=server
        )
        options = RunOptions(
            solver=fedax.SGD(0.1),
            schedule=schedule,
            engine=fedax.Simulation(devices=1),
            clock=clock,
            rounds=ROUNDS,
            observe_every=ROUNDS,
        )
        self.grid = Grid([method], task, [0], options)
        self.done = 0
        self.state = self.grid.init()
        self.seconds(ROUNDS)

    def seconds(self, rounds: int) -> float:
        """The seconds of a round, of so many in one call."""
        begun = time.perf_counter()
        self.state, _ = self.grid.program.advance(self.state, self.done, rounds)
        jax.block_until_ready(jax.tree.leaves(self.state))
        self.done += rounds
        return (time.perf_counter() - begun) / rounds


def cohorts_of(clients: int, repeats: int) -> None:
    """Prints the time of a round against the cohort, and the slope of both logarithms: 1 is linear,
    less has fixed costs."""
    sizes = (10, 30, 100, 300, 1000)
    for name, method in METHODS.items():
        runners = [Runner(method, "uniform", clients, cohort) for cohort in sizes]
        times = np.array([[runner.seconds(ROUNDS) for runner in runners] for _ in range(repeats)])
        medians = np.median(times, axis=0)
        slope = np.polyfit(np.log(sizes), np.log(medians), 1)[0]
        steepest = np.max(np.diff(np.log(medians)) / np.diff(np.log(sizes)))
        cells = ", ".join(f"{n}: {1e3 * t:.3f}" for n, t in zip(sizes, medians, strict=True))
        print(
            f"{name}, {clients} clients, milliseconds by cohort: {cells}; slope {slope:.2f}, at "
            f"most {steepest:.2f}",
            flush=True,
        )


def asynchronous(sizes: list[int], repeats: int) -> None:
    """Prints the time of a server step of ten, with 1,000 clients at work, against the population,
    interleaved."""
    runners = []
    for n in sizes:
        speed = np.random.default_rng(0).lognormal(size=n)
        clock = fedax.Clock(speed, latency=0.1)
        runners.append(Runner(fedax.FedAvg(), "uniform", n, clock=clock))
    times = np.array([[runner.seconds(ROUNDS) for runner in runners] for _ in range(repeats)])
    medians = np.median(times, axis=0)
    ratios = np.median(times / times[:, :1], axis=0)
    cells = ", ".join(
        f"{n}: {1e3 * t:.3f} ({r:.2f})" for n, t, r in zip(sizes, medians, ratios, strict=True)
    )
    print(f"FedBuff, milliseconds by population: {cells}", flush=True)


def data_of(clients: int) -> None:
    """Prints the cost of data that are split among many clients, and of a task made of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * clients, FEATURES)).astype(np.float32)
    y = rng.integers(0, 2, 2 * clients)
    partition = list(np.arange(2 * clients).reshape(clients, 2))
    begun = time.perf_counter()
    data = FederatedData.partitioned(x, y, partition, classes=2)
    made = time.perf_counter()
    fedax.classification(data, Softmax(FEATURES, 2))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{clients} clients: data {made - begun:.1f} s, task {time.perf_counter() - made:.1f} "
        f"s, at most {most:.2f} GB in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", choices=["asynchronous"])
    given = parser.parse_args()
    if given.only:
        asynchronous([n for n in (10**3, 10**4, 10**5) if n <= given.most], given.repeats)
        return
    data_of(given.most)
    cohorts_of(min(given.most, 10**5), given.repeats)
    sizes = [n for n in (10**k for k in range(2, 8)) if n <= given.most]
    print(
        "milliseconds of a round in a call of many, and of one in a call of its own; in "
        "brackets as ratios to the first column"
    )
    for name, method in METHODS.items():
        for sampling in SAMPLING:
            runners = [Runner(method, sampling, clients) for clients in sizes]
            for rounds in (ROUNDS, 1):
                times = np.array(
                    [[runner.seconds(rounds) for runner in runners] for _ in range(given.repeats)]
                )
                medians = np.median(times, axis=0)
                ratios = np.median(times / times[:, :1], axis=0)
                cells = ", ".join(
                    f"{n}: {1e3 * t:.3f} ({r:.2f})"
                    for n, t, r in zip(sizes, medians, ratios, strict=True)
                )
                print(f"{name}, {sampling}, {rounds} in a call: {cells}", flush=True)


if __name__ == "__main__":
    main()
