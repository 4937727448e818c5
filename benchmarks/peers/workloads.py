"""The workloads, in files that every contestant reads: data, initial model, cohorts, and the rows
of every step.

Cohorts and orders are those that fedax draws from its seed, so that fedax, which draws them within
its time, and the others, which are given them, take the same steps."""

import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.data import FederatedData
from fedax.models import MLP, Softmax, lenet, mnist_cnn
from fedax.numerics.permutation import permutation
from fedax.tasks import classification
from fedax.utils.random import stream

SEED = 0


@dataclass
class Workload:
    """Sizes of a workload. Its `long` number of rounds is for contestants in JAX, the `short` one
    for the others.

    `tolerance` is of losses, above what rounding alone does to them; it doubles every few steps
    where pooling chooses between nearly equal values. Training must move a loss by twenty times as
    much, or nothing is compared."""

    title: str
    model: Any
    rate: float
    batch: int
    long: int
    short: int
    epochs: int = 1
    cohort: int | None = None
    tolerance: float = 1e-4


WORKLOADS = {
    "softmax": Workload("softmax 60-10, 10 of 30 clients, 20 epochs, batches of 10", Softmax(60, 10), 0.01, 10, 40, 10, 20, 10),
    "2nn": Workload("2NN 784-200-200-10, 10 clients of 600, batches of 50", MLP((784, 200, 200, 10)), 0.1, 50, 40, 10),
    "lenet": Workload("LeNet on 32 x 32 x 3, 8 clients of 500, batches of 64", lenet(), 0.05, 64, 10, 5, tolerance=2e-3),
    "mnist_cnn": Workload("MNIST CNN, 4 clients of 200, batches of 50", mnist_cnn(), 0.05, 50, 4, 4, tolerance=2e-3),
    "flute": Workload(
        "LR-MNIST of FLUTE: 784-10, 10 of 1,000 clients, batches of 10, 100 rounds",
        Softmax(784, 10), 0.03, 10, 100, 100, cohort=10,
    ),
}  # fmt: skip


def mnist_file():
    """The path of MNIST, None if it is not there."""
    folder = Path(
        os.environ.get("FEDAX_DATA", Path(__file__).parents[2].parent / "shared" / "data")
    )
    return folder / "mnist.npz" if (folder / "mnist.npz").is_file() else None


def pictures(count, features, rng):
    """Images that can be learned: a random prototype for each class, and noise."""
    y = rng.integers(0, 10, count)
    prototypes = rng.random((10, features), np.float32)
    return (0.5 * prototypes[y] + 0.5 * rng.random((count, features), np.float32)), y.astype(
        np.int32
    )


def data_of(name, mnist):
    """The clients' data, and a word on its origin."""
    rng = np.random.default_rng(SEED)
    if name == "softmax":
        return fedax.data.synthetic(0.5, 0.5, seed=0, test_fraction=0.0), "Synthetic(0.5, 0.5)"
    if name == "flute" and mnist:
        return fedax.data.mnist_devices(folder=mnist.parent), (
            "MNIST on 1,000 devices as in FedProx, 90 % for training"
        )
    if name == "flute":
        sizes = np.maximum(rng.lognormal(3.5, 1.0, 1000).astype(int), 10)
    else:
        sizes = {"2nn": [600] * 10, "lenet": [500] * 8, "mnist_cnn": [200] * 4}[name]
    total = int(np.sum(sizes))
    if mnist and name != "lenet":
        with np.load(mnist) as file:
            x = file["x_train"][:total].reshape(total, -1).astype(np.float32) / 255
            y = file["y_train"][:total].astype(np.int32)
            origin = "MNIST"
    else:
        x, y = pictures(total, 3072 if name == "lenet" else 784, rng)
        origin = "random images"
    ends = np.cumsum([0, *sizes])
    return FederatedData.from_arrays(
        [{"x": x[a:b], "y": y[a:b]} for a, b in itertools.pairwise(ends)], classes=10
    ), origin


def schedule_of(workload):
    return fedax.Schedule(cohort=workload.cohort, epochs=workload.epochs, batch_size=workload.batch)


def task_of(workload, data):
    return classification(data, workload.model)


def write(name, path):
    """Writes a workload; gives the word on its data."""
    workload = WORKLOADS[name]
    data, origin = data_of(name, mnist_file())
    task = task_of(workload, data)
    schedule = schedule_of(workload)
    offsets = np.asarray(task.train.offsets)
    start = jax.random.fold_in(jax.random.key(SEED), 0)
    root = jax.random.fold_in(jax.random.key(SEED), 1)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(task.start(start))]
    draw = jax.jit(lambda t: schedule.draw(stream(root, "cohort", t, 0), jnp.asarray(offsets))[0])
    cohorts = np.stack([np.asarray(draw(t)) for t in range(workload.long)])
    largest = int(np.diff(offsets).max())

    @jax.jit
    def orders(t, k, size):
        key = stream(root, "client", t, k, 0, "order")
        return jax.vmap(lambda epoch: permutation(jax.random.fold_in(key, epoch), size, largest))(
            jnp.arange(workload.epochs)
        )

    rows = []
    counts = []
    jobs = [0]
    for t, cohort in enumerate(cohorts):
        for k in cohort:
            size = int(offsets[k + 1] - offsets[k])
            for order in np.asarray(orders(t, int(k), size)):
                rows.append(order[:size] + offsets[k])
                counts += [
                    min(workload.batch, size - begin) for begin in range(0, size, workload.batch)
                ]
            jobs.append(len(counts))
    model = workload.model
    about = {
        "name": name, "rate": workload.rate, "batch": workload.batch, "epochs": workload.epochs, "seed": SEED,
        "rounds": workload.long, "cohort": cohorts.shape[1], "shapes": [leaf.shape for leaf in leaves],
        "image": getattr(model, "shape", None), "padding": getattr(model, "padding", None),
    }  # fmt: skip
    np.savez(
        path, about=json.dumps(about), x=np.asarray(task.train.arrays["x"], np.float32),
        y=np.asarray(task.train.arrays["y"], np.int64), offsets=offsets, initial=np.concatenate([v.ravel() for v in leaves]),
        cohorts=cohorts, rows=np.concatenate(rows), ends=np.cumsum([0, *counts]), jobs=np.array(jobs),
    )  # fmt: skip
    return origin


def loss_of(work, vector):
    """The mean cross-entropy over all training examples, in pieces of 500."""
    model = WORKLOADS[work.name].model
    tree = jax.tree.structure(jax.eval_shape(model.init, jax.random.key(0))[0])
    params = jax.tree.unflatten(tree, work.leaves(np.asarray(vector)))
    total = 0.0
    for begin in range(0, len(work.x), 500):
        logits = np.asarray(
            model.apply(params, None, work.x[begin : begin + 500], None)[0], np.float64
        )
        top = logits.max(axis=1, keepdims=True)
        logs = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
        total += (logs - logits[np.arange(len(logits)), work.y[begin : begin + 500]]).sum()
    return total / len(work.x)
