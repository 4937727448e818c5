"""FedDANE's Figure 3 on the authors' own synthetic data: all devices, one local epoch, every mu of
the grid.

The authors' training files are not public; their test files are. Here the test examples are the
training data: the same 30 devices with a tenth of the examples. The folder FEDAX_DATA has to hold
`fedprox_synthetic/synthetic_<set>_test.json.gz`. Takes minutes on one core.

    FEDAX_DATA=... python docs/findings/feddane/published.py docs/findings/feddane/published.csv
"""

import argparse
import csv
import os
from pathlib import Path

import fedax
from fedax.data import leaf
from fedax.models import Softmax

SETS = {
    "Synthetic IID": "iid",
    "Synthetic (0, 0)": "0_0",
    "Synthetic (0.5, 0.5)": "0.5_0.5",
    "Synthetic (1, 1)": "1_1",
}
MU = (0.0, 0.001, 0.01, 0.1, 1.0)
FORMS = {
    "FedDANE": {"correction": "exact", "cohorts": "independent"},
    "FedDANE as released": {"correction": "as_released", "cohorts": "shared"},
}
OPTIONS = {
    "solver": fedax.SGD(0.01),
    "observe": [fedax.observe.TrainLoss()],
    "observe_every": 4,
}


def published_task(folder: Path, name: str) -> fedax.Task:
    """Loads a published test set as the training data of its devices."""
    data = leaf(
        folder / "fedprox_synthetic" / f"synthetic_{SETS[name]}_test.json.gz", classes=10, name=name
    )
    return fedax.classification(data, Softmax(60, 10))


def compare(
    task: fedax.Task, rounds: int, epochs: int, seeds: list[int]
) -> dict[str, list[list[float]]]:
    """Runs all methods with the same seeds.

    Returns:
        The training losses by method, a list of observations for each seed.
    """
    schedule = fedax.Schedule(epochs=epochs, batch_size=10)
    members = {"FedAvg": [fedax.FedAvg()], "FedProx, mu = 1": [fedax.FedProx(mu=1.0)]}
    members |= {name: [fedax.FedDANE(mu=mu, **form) for mu in MU] for name, form in FORMS.items()}
    curves = {}
    for name, group in members.items():
        histories = fedax.run_grid(
            group, task, seed=seeds, rounds=rounds, schedule=schedule, **OPTIONS
        )
        for i, method in enumerate(group):
            label = f"{name}, mu = {method.mu:g}" if name in FORMS else name
            own = histories[i * len(seeds) : (i + 1) * len(seeds)]
            curves[label] = [
                [float(value) for value in history.metrics["train_loss"]] for history in own
            ]
    return curves


def main() -> None:
    """Writes the final losses of every set, method and seed, and prints their differences to
    FedAvg."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="CSV to write")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--epochs",
        type=int,
        default=1,
        help="10 is about as much work as an epoch of the training files",
    )
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    seeds = list(range(chosen.seeds))
    rows = []
    for name in SETS:
        curves = compare(
            published_task(Path(os.environ["FEDAX_DATA"]), name),
            chosen.rounds,
            chosen.epochs,
            seeds,
        )
        for label, runs in curves.items():
            finals = [run[-1] for run in runs]
            gaps = [final - base[-1] for final, base in zip(finals, curves["FedAvg"], strict=True)]
            rows += [
                {
                    "task": name,
                    "algorithm": label,
                    "seed": seed,
                    "train_loss": f"{final:.6g}",
                    "minus_fedavg": f"{gap:.4g}",
                }
                for seed, final, gap in zip(seeds, finals, gaps, strict=True)
            ]
            print(
                f"{name} | {label} | {sum(finals) / len(finals):.4f} | {min(gaps):+.4f} to "
                f"{max(gaps):+.4f}",
                flush=True,
            )
    with chosen.file.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
