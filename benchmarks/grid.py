"""The speed-up of a grid as one compiled program over its members one after the other; the numbers
agree.

python benchmarks/grid.py [--settings 30] [--seeds 5] [--rounds 20]
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

import fedax
from fedax.experiments.running.setup import set_up_jax


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    set_up_jax()
    task = fedax.task("synthetic", alpha=1.0, beta=1.0)
    grid = [fedax.FedProx(mu=float(mu)) for mu in np.linspace(0.0, 1.0, given.settings)]
    seeds = list(range(given.seeds))
    options = {
        "solver": fedax.SGD(0.01),
        "schedule": fedax.Schedule(cohort=10, epochs=1, batch_size=10),
        "rounds": given.rounds,
        "observe": [fedax.observe.TrainLoss()],
        "observe_every": given.rounds,
    }

    def together() -> list[fedax.History]:
        return fedax.run_grid(grid, task, seed=seeds, **options)

    def seed_by_seed() -> list[fedax.History]:
        by_seed = [fedax.run_grid(grid, task, seed=seed, **options) for seed in seeds]
        return [histories[k] for k in range(given.settings) for histories in by_seed]

    def apart() -> list[fedax.History]:
        return [
            fedax.run(algorithm, task, seed=seed, **options) for algorithm in grid for seed in seeds
        ]

    def measured(work: Callable[[], list[fedax.History]]) -> tuple[float, np.ndarray]:
        begun = time.perf_counter()
        losses = [history.last("train_loss") for history in work()]
        return time.perf_counter() - begun, np.array(losses)

    together(), seed_by_seed(), fedax.run(grid[0], task, **options)  # compiles
    results = {work.__name__: measured(work) for work in (together, seed_by_seed, apart)}
    seconds, values = results["apart"]
    print(
        f"{given.settings} settings x {given.seeds} seeds, {given.rounds} rounds, compilation "
        "not counted:"
    )
    print(f"one after the other {seconds:.2f} s")
    for name in ("seed_by_seed", "together"):
        own, losses = results[name]
        worst = max(abs(losses / values - 1))
        print(
            f"{name.replace('_', ' ')} {own:.2f} s, {seconds / own:.1f} times; losses differ by "
            f"at most {worst:.1e} (relative)"
        )


if __name__ == "__main__":
    main()
