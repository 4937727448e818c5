"""Clients that are read from files: seconds of a round and memory against the size of the
population, each in a new process.

python benchmarks/stored.py [--clients 100000 1000000 10000000] [--features 60] [--folder FOLDER]

The largest files are clients x 2 x (4 x features + 4) bytes: 4.9 GB for the default. As root on
Linux, `--cold` also measures the first 256 rounds after the system's cache of files was emptied."""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

COHORT = 10
ROUNDS = 256
CLASSES = 10


def people(clients: int, features: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for begin in range(0, clients, 1000):
        count = min(1000, clients - begin)
        x = rng.normal(size=(count, 2, features)).astype(np.float32)
        y = rng.integers(0, CLASSES, (count, 2))
        for own in zip(x, y, strict=True):
            yield dict(zip("xy", own, strict=True))


def measure(folder: str, cold: bool) -> dict[str, float]:
    """Seconds of opening, of a round, and of the loss of everybody, and the most memory of the
    process in GB."""
    import fedax

    begun = time.perf_counter()
    data = fedax.data.stored(folder)
    task = fedax.classification(data, fedax.models.Softmax(data.train[0]["x"].shape[1], CLASSES))
    opened = time.perf_counter() - begun
    common: dict[str, Any] = {
        "schedule": fedax.Schedule(cohort=COHORT, batch_size=2),
        "engine": fedax.Simulation(devices=1),
    }

    def rounds(seed: int) -> float:
        options = common | {"rounds": ROUNDS, "observe": [], "observe_every": ROUNDS}
        history = fedax.run(fedax.FedAvg(), task, seed=seed, **options)
        return (history.seconds[-1] - history.seconds[0]) / ROUNDS

    rounds(0)
    if cold:
        subprocess.run("sync; echo 3 > /proc/sys/vm/drop_caches", shell=True, check=True)
        return {"round": rounds(1)}
    a_round = float(np.median([rounds(seed) for seed in range(1, 6)]))
    watch = [fedax.observe.TrainLoss()]
    for _ in range(2):  # the first one compiles
        history = fedax.run(fedax.FedAvg(), task, rounds=0, observe=watch, **common)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "open": opened,
        "round": a_round,
        "loss": history.seconds[-1],
        "GB": gigabytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--features", type=int, default=60)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        folder, cold = given.measure
        print(json.dumps(measure(folder, cold == "1")))
        return

    def apart(folder: Path, cold: bool) -> dict[str, float]:
        command = [
            sys.executable,
            __file__,
            "--measure",
            str(folder),
            str(int(cold)),
        ]
        return json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[
                -1
            ]
        )

    from fedax.data import store

    print(
        "| clients | files, GB | written, s | opened, s | a round, ms | loss of everybody, s "
        "| most memory, GB |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        for clients in given.clients:
            folder = Path(place) / str(clients)
            begun = time.perf_counter()
            store(folder, people(clients, given.features), classes=CLASSES)
            written = time.perf_counter() - begun
            size = sum(file.stat().st_size for file in folder.rglob("*.npy")) / 1e9
            found = apart(folder, False)
            cells = (
                f"{found['open']:.2f} | {1e3 * found['round']:.2f} | {found['loss']:.2f} | "
                f"{found['GB']:.2f}"
            )
            print(f"| {clients:,} | {size:.2f} | {written:.1f} | {cells} |", flush=True)
            if given.cold and clients == given.clients[-1]:
                median = 1e3 * np.median([apart(folder, True)["round"] for _ in range(3)])
                print(f"\nFrom cold files: {median:.2f} ms a round")
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
