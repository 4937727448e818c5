"""The runs and the picture of docs/findings/directed.md: mixing by rows and push-sum on a directed
network that loses messages.

python study.py run     all runs, kept as runs.csv beside this file
python study.py draw    the picture and the table, from runs.csv
"""

import csv
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import networkx
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

import fedax
from fedax.observe.base import Observer, View
from fedax.results.drawing import Picture, curves, save

HERE = Path(__file__).parent
CLIENTS, DIM, ROUNDS, EVERY = 10, 5, 4000, 100
SEEDS = (0, 1, 2)
DROPS = (0.0, 0.3)
DISTANCE = "relative distance to the optimum"
METHODS = {
    "DSGD, rows": (fedax.DSGD, "row", "receiver"),
    "PushSum, columns": (fedax.PushSum, "column", "sender"),
}


class Distance(Observer):
    """`mean_distance` and `worst_distance`: relative distance to a point, of the mean model and of
    the farthest model."""

    point: Float[Array, "dim"]
    lower_is_better = ("mean_distance", "worst_distance")

    def __call__(self, view: View) -> dict[str, Any]:
        scale = jnp.linalg.norm(self.point)
        worst = jnp.linalg.norm(view.nodes - self.point, axis=1).max()
        return {
            "mean_distance": jnp.linalg.norm(view.w - self.point) / scale,
            "worst_distance": worst / scale,
        }


def network() -> networkx.DiGraph:
    """Returns a directed cycle with links from client 0 to every second client, so that client 0 is
    heard most."""
    return networkx.DiGraph(
        [(i, (i + 1) % CLIENTS) for i in range(CLIENTS)] + [(0, i) for i in range(2, CLIENTS, 2)]
    )


def problem(seed: int) -> tuple[fedax.Task, np.ndarray]:
    """Returns least squares with 20 examples a client, which differ in their solutions, and the
    common optimum."""
    rng = np.random.default_rng(seed)
    inputs, truth = rng.normal(size=(CLIENTS, 20, DIM)), rng.normal(size=(CLIENTS, DIM))
    targets = np.einsum("knd,kd->kn", inputs, truth) + 0.1 * rng.normal(size=(CLIENTS, 20))
    clients = [{"x": x, "y": y} for x, y in zip(inputs, targets, strict=True)]
    task = fedax.Task(jnp.zeros(DIM), lambda w, each: (each["x"] @ w - each["y"]) ** 2 / 2, clients)
    return task, np.linalg.lstsq(inputs.reshape(-1, DIM), targets.reshape(-1), rcond=None)[0]


def run(method: str, drops: float, seed: int) -> fedax.History:
    """Returns a run with one full gradient between exchanges and a step size that falls as
    1/sqrt(t)."""
    kind, sums, repair = METHODS[method]
    graph = fedax.Graph.directed(network(), sums)
    task, optimum = problem(seed)
    return fedax.run(
        kind(graph=graph.lossy(drops, repair) if drops else graph),
        task,
        solver=fedax.SGD(0.05, decay=lambda t: 1 / jnp.sqrt(1 + t / 20)),
        schedule=fedax.Schedule(steps=1, batch_size="full"),
        rounds=ROUNDS,
        seed=seed,
        observe=[Distance(jnp.asarray(optimum))],
        observe_every=EVERY,
    )


def run_all() -> None:
    with (HERE / "runs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "drops", "seed", "round", "mean_distance", "worst_distance"])
        for method in METHODS:
            for drops in DROPS:
                for seed in SEEDS:
                    found = run(method, drops, seed).metrics
                    for i, values in enumerate(
                        zip(found["mean_distance"], found["worst_distance"], strict=True)
                    ):
                        writer.writerow(
                            [method, drops, seed, i * EVERY, *(f"{value:.6g}" for value in values)]
                        )


def draw() -> None:
    rows = pd.read_csv(HERE / "runs.csv")
    names = {"mean_distance": "mean model", "worst_distance": "farthest client"}
    lines = rows.melt(["method", "drops", "seed", "round"], list(names), "model", DISTANCE)
    lines["line"] = lines["method"] + ": " + lines["model"].map(names)
    lost = lines["drops"].map(lambda drops: f"{drops:.0%} of the messages lost")
    lines["lost"] = lost.where(lines["drops"] > 0, "no message lost")
    ends = lines[lines["round"] == lines["round"].max()]
    for (drops, line), values in ends.groupby(["lost", "line"], sort=False)[DISTANCE]:
        print(f"{line}, {drops}: {values.round(4).tolist()}")
    lines = lines.rename(columns={"seed": "run", "lost": "messages"}).drop(columns="method")
    figure = curves(lines, y=DISTANCE, hue="line", col="messages", log=True)
    title = "A directed network: mixing by rows, and push-sum"
    save([Picture("distance", figure, title)], HERE, ["png"])


if __name__ == "__main__":
    {"run": run_all, "draw": draw}[sys.argv[1]]()
