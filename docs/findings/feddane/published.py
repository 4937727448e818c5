"""FedDANE's Figure 3 on the authors' own synthetic data: all devices, one local epoch, every mu of
the grid.

The authors' training files are not public; their test files are. Here the test examples are the
training data: the same 30 devices with a tenth of the examples. The folder FEDAX_DATA has to hold
`fedprox_synthetic/synthetic_<set>_test.json.gz`. Takes minutes on one core.

    FEDAX_DATA=... python docs/findings/feddane/published.py docs/findings/feddane/published.csv 1

The number is that of local epochs: 10 are about as much work as an epoch of the training files.
"""

import itertools
import os
import sys
from pathlib import Path

import pandas as pd

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


def main() -> None:
    """Writes the final losses of every set, method and seed, and prints their differences to
    FedAvg."""
    file, epochs = sys.argv[1:]
    schedule = fedax.Schedule(epochs=int(epochs), batch_size=10)
    seeds = range(5)
    members = {"FedAvg": [fedax.FedAvg()], "FedProx, mu = 1": [fedax.FedProx(mu=1.0)]}
    members |= {name: [fedax.FedDANE(mu=mu, **form) for mu in MU] for name, form in FORMS.items()}
    rows = []
    for title in SETS:
        task = published_task(Path(os.environ["FEDAX_DATA"]), title)
        for name, group in members.items():
            histories = fedax.run_grid(
                group, task, seed=seeds, rounds=200, schedule=schedule, **OPTIONS
            )
            labels = [f"{name}, mu = {one.mu:g}" if name in FORMS else name for one in group]
            cells = itertools.product([title], labels, seeds)
            for cell, history in zip(cells, histories, strict=True):
                rows.append([*cell, history.metrics["train_loss"][-1].item()])
            print(title, name, sep=" | ", flush=True)
    frame = pd.DataFrame(rows, columns=["task", "algorithm", "seed", "train_loss"])
    # FedAvg's rows come first
    losses = frame.groupby(["task", "seed"])["train_loss"]
    frame["minus_fedavg"] = frame["train_loss"] - losses.transform("first")
    frame.to_csv(file, index=False, float_format="%.6g")
    ends = frame.groupby(["task", "algorithm"], sort=False)
    print(ends[["train_loss", "minus_fedavg"]].agg(["mean", "min", "max"]).to_string())


if __name__ == "__main__":
    main()
