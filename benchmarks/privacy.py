"""Accuracy, and the success of membership inference, against the privacy that is spent: FedAvg and
SCAFFOLD on digits.

python benchmarks/privacy.py docs/privacy [--rounds 30] [--seeds 3]

Writes `epsilon.csv` and `epsilon.png`; needs the extras `privacy` and `paper`.
"""

import argparse
import csv
import math
from pathlib import Path

import numpy as np

import fedax
from fedax.audit import membership

EPSILONS = (2.0, 8.0, math.inf)
METHODS = {"FedAvg": fedax.FedAvg(), "SCAFFOLD": fedax.SCAFFOLD()}
DELTA = 1e-3
CLIENTS = 100
COHORT = 30


def channel(method, task, schedule, rounds, epsilon):
    """Clipping adapted to the median length, with the least noise that spends epsilon; the plain
    run for infinity."""
    if epsilon == math.inf:
        return None
    private = fedax.Privacy(clip=0.5, noise=0.0, delta=DELTA, quantile=0.5)
    noise = fedax.privacy.noise_for(
        epsilon, method, task, schedule=schedule, privacy=private, rounds=rounds
    )
    return fedax.Channel(privacy=fedax.Privacy(clip=0.5, noise=noise, delta=DELTA, quantile=0.5))


def measured(rounds, seeds):
    task = fedax.task("digits", partition="iid", clients=CLIENTS)
    schedule = fedax.Schedule(
        cohort=COHORT, sampling="poisson", epochs=5, batch_size=10, weights="equal"
    )
    rows = []
    for name, method in METHODS.items():
        for epsilon in EPSILONS:
            given = {
                "solver": fedax.SGD(0.1),
                "schedule": schedule,
                "channel": channel(method, task, schedule, rounds, epsilon),
            }
            watch = {"observe": [fedax.observe.TestAccuracy()], "observe_every": rounds}
            runs = fedax.run_grid(
                [method], task, seed=range(seeds), rounds=rounds, **watch, **given
            )
            accuracies = [history.last("test_accuracy") for history in runs]
            areas = [
                membership(method, task, looks=[rounds], seed=seed, **given).auc["calibrated"][-1]
                for seed in range(seeds)
            ]
            spent = [
                history.metrics["epsilon"][-1] for history in runs if "epsilon" in history.metrics
            ]
            noise = 0.0 if given["channel"] is None else given["channel"].privacy.noise
            row = (
                name,
                epsilon,
                spent[0] if spent else math.inf,
                noise,
                *means(accuracies),
                *means(areas),
            )
            print(
                *(f"{value:.3f}" if isinstance(value, float) else value for value in row),
                flush=True,
            )
            rows.append(row)
    return rows


def means(values):
    """Mean and standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(
        values
    ) > 1 else math.nan


def draw(rows, path):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    places = range(len(EPSILONS))
    for axis, column, title in zip(
        axes, (4, 6), ("Test accuracy", "AUC of membership inference"), strict=True
    ):
        for name in METHODS:
            own = [row for row in rows if row[0] == name]
            axis.errorbar(
                places,
                [r[column] for r in own],
                [r[column + 1] for r in own],
                marker="o",
                capsize=3,
                label=name,
            )
        axis.set_xticks(places, ["$\\infty$" if e == math.inf else f"{e:g}" for e in EPSILONS])
        axis.set(xlabel="$\\varepsilon$", title=title)
    axes[0].legend()
    axes[1].axhline(0.5, color="grey", linewidth=1, linestyle=":")
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(
        description="Accuracy and membership inference against epsilon."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    rows = measured(given.rounds, given.seeds)
    given.folder.mkdir(parents=True, exist_ok=True)
    with (given.folder / "epsilon.csv").open("w", newline="") as file:
        titles = [
            "algorithm",
            "epsilon",
            "spent",
            "noise",
            "accuracy",
            "its error",
            "auc",
            "its error",
        ]
        csv.writer(file).writerows([titles, *rows])
    draw(rows, given.folder / "epsilon.png")


if __name__ == "__main__":
    main()
