"""Decentralized federated averaging on MNIST: against FedAvg and DSGD, by bits, and by how well the
graph is connected.

This benchmark trains the 2NN (199,210 parameters) on 20 clients of 3000 images. All clients work in
every round, with one local epoch of batches of 50. FedAvg and DSGD use the learning rate 0.1.
DFedAvgM uses 0.01 and momentum 0.9, as in the paper. DSGD takes one step between communications.
IID data run on a ring with 32, 16 and 8 bits. Data with two label shards for each client run on
graphs from the ring to the complete one.

    python benchmarks/decentralized.py --out docs/findings/decentralized

Writes metrics.csv and lambda.png. Needs MNIST (`FEDAX_DATA`) and matplotlib.
"""

import argparse
import csv
import time
from pathlib import Path

import matplotlib
import numpy as np
from rich.progress import Progress

import fedax
from fedax.observe import Consensus, NodeAccuracy, TestAccuracy
from fedax.tasks import sources

matplotlib.use("agg")
import matplotlib.pyplot as plt

CLIENTS = 20
SGD = fedax.SGD(0.1)
MOMENTUM = fedax.SGD(0.01, momentum=0.9)
EPOCH = fedax.Schedule(epochs=1, batch_size=50)
STEP = fedax.Schedule(steps=1, batch_size=50)
GRAPHS = {
    "ring": fedax.Graph.ring(CLIENTS),
    "grid": fedax.Graph.grid(CLIENTS),
    "torus": fedax.Graph.torus(CLIENTS),
    "random, 4 neighbours": fedax.Graph.random_regular(CLIENTS, 4),
    "random, 8 neighbours": fedax.Graph.random_regular(CLIENTS, 8),
    "complete": fedax.Graph.complete(CLIENTS),
}


def iid():
    ring = GRAPHS["ring"]
    yield "FedAvg", fedax.FedAvg(), SGD, EPOCH
    yield "DSGD", fedax.DSGD(graph=ring), SGD, STEP
    yield "DFedAvgM", fedax.DFedAvgM(graph=ring), MOMENTUM, EPOCH
    for bits in (16, 8):
        yield (
            f"DFedAvgM, {bits} bits",
            fedax.QuantizedDFedAvgM(graph=ring, b=bits, mode="replica"),
            MOMENTUM,
            EPOCH,
        )


def shards():
    yield "FedAvg", fedax.FedAvg(), SGD, EPOCH
    for name, graph in GRAPHS.items():
        yield f"DFedAvgM, {name}", fedax.DFedAvgM(graph=graph), MOMENTUM, EPOCH


def measure(partition, methods, rounds, seeds, progress):
    task = sources.mnist(partition=partition, clients=CLIENTS, model="mlp", seed=0)
    methods = list(methods)
    bar = progress.add_task(partition, total=len(methods) * len(seeds))
    rows = []
    for name, method, solver, schedule in methods:
        graph = getattr(method, "graph", None)
        watched = [TestAccuracy(), *([] if graph is None else [NodeAccuracy(), Consensus()])]
        for seed in seeds:
            options = {"solver": solver, "schedule": schedule, "seed": seed, "observe": watched}
            begun = time.perf_counter()
            history = fedax.run(
                method, task, rounds=rounds, observe_every=max(rounds // 20, 1), **options
            )
            assert history.outcome.ok, (name, history.outcome)
            for i, at in enumerate(history.rounds):
                values = {key: float(history.metrics[key][i]) for key in history.metrics}
                rows.append(
                    {
                        "data": partition,
                        "method": name,
                        "lambda": "" if graph is None else round(graph.lam, 5),
                        "seed": seed,
                        "round": int(at),
                        "test_accuracy": values["test_accuracy"],
                        "node_accuracy": values.get("node_accuracy_mean", ""),
                        "consensus": values.get("consensus", ""),
                        "seconds": round(time.perf_counter() - begun, 1),
                    }
                )
            progress.advance(bar)
    return rows


def last(rows, data, method, column, over=1):
    """Mean and deviation over seeds of the mean of the last observations, in per cent."""
    mine = [row for row in rows if row["data"] == data and row["method"] == method]
    by_seed = [
        [row[column] for row in mine if row["seed"] == seed][-over:]
        for seed in sorted({row["seed"] for row in mine})
    ]
    means = 100 * np.mean(np.asarray(by_seed, float), axis=1)
    return means.mean(), means.std(ddof=1) if len(means) > 1 else 0.0


def methods_of(rows, data):
    return list(
        dict.fromkeys((row["method"], row["lambda"]) for row in rows if row["data"] == data)
    )


def draw(rows, path):
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    graphs = [(method, lam) for method, lam in methods_of(rows, "shards") if lam != ""]
    for column, label, mark in (
        ("test_accuracy", "mean of the clients' models", "o"),
        ("node_accuracy", "clients' own models", "s"),
    ):
        points = sorted((lam, *last(rows, "shards", method, column, 3)) for method, lam in graphs)
        axes.errorbar(*np.transpose(points), fmt=f"{mark}-", capsize=3, label=f"DFedAvgM, {label}")
    axes.axhline(
        last(rows, "shards", "FedAvg", "test_accuracy", 3)[0],
        color="grey",
        linestyle="--",
        label="FedAvg",
    )
    axes.set(
        xlabel="lambda of the mixing matrix (0 complete, 1 disconnected)", ylabel="test accuracy, %"
    )
    axes.set_title("MNIST, two shards each, 20 clients")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--again",
        action="store_true",
        help="only draw the picture from the metrics in the folder",
    )
    parser.add_argument("--iid-rounds", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = arguments.out / "metrics.csv"
    if arguments.again:
        with table.open(newline="") as stream:
            rows = [
                row | {"lambda": row["lambda"] and float(row["lambda"])}
                for row in csv.DictReader(stream)
            ]
    else:
        with Progress() as progress:
            rows = measure("iid", iid(), arguments.iid_rounds, arguments.seeds, progress)
            rows += measure("shards", shards(), arguments.rounds, arguments.seeds, progress)
        with table.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    draw(rows, arguments.out / "lambda.png")
