"""How much faster a grid runs as one compiled program than its members one after the other, and that the numbers agree.

python benchmarks/grid.py [--settings 30] [--rounds 20]
"""

import argparse
import time

import numpy as np

import fedax
from fedax.experiments.setup import set_up_jax


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    set_up_jax()
    task = fedax.tasks.synthetic(1.0, 1.0)
    grid = [fedax.FedProx(mu=float(mu)) for mu in np.linspace(0.0, 1.0, given.settings)]
    options = {
        "solver": fedax.SGD(0.01),
        "schedule": fedax.Schedule(cohort=10, epochs=1, batch_size=10),
        "rounds": given.rounds,
        "observe": [fedax.observe.TrainLoss()],
        "observe_every": given.rounds,
    }

    def together() -> list[float]:
        return [
            h.last("train_loss") for seed in range(given.seeds) for h in fedax.run_grid(grid, task, seed=seed, **options)
        ]

    def apart() -> list[float]:
        return [fedax.run(a, task, seed=seed, **options).last("train_loss") for seed in range(given.seeds) for a in grid]

    seconds, values = {}, {}
    for name, work in (("together", together), ("apart", apart)):
        fedax.run(grid[0], task, **options) if name == "apart" else fedax.run_grid(grid, task, **options)  # compiles
        begun = time.perf_counter()
        values[name] = work()
        seconds[name] = time.perf_counter() - begun
    worst = max(abs(np.array(values["together"]) / np.array(values["apart"]) - 1))
    print(f"{given.settings} settings x {given.seeds} seeds, {given.rounds} rounds, compilation not counted:")
    print(f"one program {seconds['together']:.2f} s, one after the other {seconds['apart']:.2f} s,", end=" ")
    print(f"{seconds['apart'] / seconds['together']:.1f} times; largest relative difference of final losses {worst:.1e}")


if __name__ == "__main__":
    main()
