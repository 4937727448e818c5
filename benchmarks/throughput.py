"""Client-samples per second: fedax beside a bare JAX loop and PyTorch eager, in one run on the same machine.

Two workloads. `softmax`: 60 -> 10, 30 clients with power-law sizes (Synthetic), 10 a round, 20 epochs, batches of 10.
`2nn`: 784-200-200-10, 10 clients of 600 digits of MNIST (`FEDAX_DATA`; random images without), one epoch of batches of 50.

All take the same gradient steps: plain SGD on the same clients, batches and short last batches. The bare loop has no federation
at all: the rows of every step are drawn up beforehand, and the program is one loop over steps with a gather, a gradient and an
update. fedax draws cohorts, shuffles every epoch, averages and keeps its history within its time.

    python benchmarks/throughput.py            # one table; --repeat, --workload to change
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import itertools

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.core.keys import stream
from fedax.models import MLP, Softmax
from fedax.tasks import classification

jax.config.update("jax_num_cpu_devices", os.cpu_count())  # before JAX starts; without effect on other backends


def digits(rng):
    """Ten clients with 600 digits of MNIST each where FEDAX_DATA has them, four of five pixels zero; random images otherwise."""
    file = Path(os.environ.get("FEDAX_DATA", Path(__file__).parents[1].parent / "shared" / "data")) / "mnist.npz"
    if file.is_file():
        with np.load(file) as mnist:
            x, y = (
                mnist["x_train"][:6000].reshape(6000, 784).astype(np.float32) / 255,
                mnist["y_train"][:6000].astype(np.int32),
            )
    else:
        x, y = rng.random((6000, 784), np.float32), rng.integers(0, 10, 6000).astype(np.int32)
    return [{"x": x[k : k + 600], "y": y[k : k + 600]} for k in range(0, 6000, 600)]


class Workload:
    """A task, a schedule, and the rows of every step of its rounds."""

    def __init__(self, name, rounds):
        rng = np.random.default_rng(0)
        if name == "softmax":
            self.data, self.model = fedax.data.synthetic(0.5, 0.5, seed=0, test_fraction=0.0), Softmax(60, 10)
            self.schedule, self.lr = fedax.Schedule(cohort=10, epochs=20, batch_size=10), 0.01
        else:
            self.data, self.model = fedax.data.FederatedData(digits(rng), classes=10), MLP((784, 200, 200, 10))
            self.schedule, self.lr = fedax.Schedule(cohort=10, epochs=1, batch_size=50), 0.1
        self.name, self.rounds = name, rounds
        self.task = classification(self.data, self.model)
        offsets, root = np.asarray(self.task.train.offsets), jax.random.fold_in(jax.random.key(0), 1)
        rows, counts, batch = [], [], self.schedule.batch_size
        for t in range(rounds):
            ids, _ = self.schedule.draw(stream(root, "cohort", t, 0), jnp.asarray(offsets))
            for k in np.asarray(ids):
                for _ in range(self.schedule.epochs):
                    order = rng.permutation(offsets[k + 1] - offsets[k]) + offsets[k]
                    for begin in range(0, len(order), batch):
                        piece = order[begin : begin + batch]
                        rows.append(np.resize(piece, batch))
                        counts.append(len(piece))
        self.rows, self.counts = np.array(rows, np.int32), np.array(counts, np.int32)
        self.samples = int(self.counts.sum())


def fedax_runner(work, devices):
    engine = fedax.Simulation(devices=devices)
    solver = fedax.SGD(work.lr)

    def once():
        history = fedax.run(
            fedax.FedAvg(), work.task, solver=solver, schedule=work.schedule, rounds=work.rounds, engine=engine,
            observe=[], observe_every=work.rounds,
        )  # fmt: skip
        assert history.outcome.ok

    return once


def bare_runner(work):
    x, y = (jnp.asarray(work.task.train.arrays[name]) for name in ("x", "y"))
    rows = jnp.asarray(work.rows)
    weights = jnp.asarray((np.arange(work.schedule.batch_size) < work.counts[:, None]) / work.counts[:, None], jnp.float32)
    params, loss = work.task.start(jax.random.key(0)), work.task.loss

    @jax.jit
    def program(params, x, y, rows, weights):
        def step(i, params):
            batch = {"x": x[rows[i]], "y": y[rows[i]]}
            gradient = jax.grad(lambda p: jnp.sum(weights[i] * loss(p, batch, None)))(params)
            return jax.tree.map(lambda p, g: p - work.lr * g, params, gradient)

        return jax.lax.fori_loop(0, rows.shape[0], step, params)

    return lambda: jax.block_until_ready(program(params, x, y, rows, weights))


def torch_runner(work, limit):
    """The first `limit` steps in PyTorch eager, all threads; its samples."""
    import torch

    x, y = (torch.from_numpy(np.asarray(work.task.train.arrays[name])) for name in ("x", "y"))
    y = y.long()
    widths = (60, 10) if work.name == "softmax" else work.model.widths
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    criterion = torch.nn.CrossEntropyLoss()
    batches = [torch.from_numpy(r[:n].astype(np.int64)) for r, n in zip(work.rows[:limit], work.counts[:limit], strict=True)]

    def once():
        for batch in batches:
            optimizer.zero_grad()
            criterion(model(x[batch]), y[batch]).backward()
            optimizer.step()

    return once, int(work.counts[:limit].sum())


def measure(workload, rounds, repeat, torch_steps):
    work = Workload(workload, rounds)
    devices = len(jax.devices())
    contestants = {"fedax, 1 device": (fedax_runner(work, 1), work.samples)}
    if devices > 1:
        contestants[f"fedax, {devices} devices"] = (fedax_runner(work, devices), work.samples)
    contestants["bare JAX loop, 1 device"] = (bare_runner(work), work.samples)
    try:
        contestants["PyTorch eager"] = torch_runner(work, torch_steps)
    except ImportError:
        print("PyTorch is not installed: pip install -r benchmarks/requirements.txt")
    first, times = {}, {name: [] for name in contestants}
    for name, (once, _) in contestants.items():
        begun = time.perf_counter()
        once()
        first[name] = time.perf_counter() - begun
    for _ in range(repeat):  # interleaved, so that noise meets all alike
        for name, (once, _) in contestants.items():
            begun = time.perf_counter()
            once()
            times[name].append(time.perf_counter() - begun)
    rates = {name: contestants[name][1] / statistics.median(values) for name, values in times.items()}
    bare, torch_rate = rates["bare JAX loop, 1 device"], rates.get("PyTorch eager", float("nan"))
    print(
        f"\n{workload}: {work.samples} samples in {rounds} rounds, batches of {work.schedule.batch_size}; medians of {repeat}"
    )
    print("| | samples/s | of the bare loop | of PyTorch | compilation, s |")
    print("|---|---|---|---|---|")
    for name, rate in rates.items():
        compilation = max(first[name] - statistics.median(times[name]), 0)
        shown = "" if name == "PyTorch eager" else f"{compilation:.1f}"
        print(f"| {name} | {rate:,.0f} | {rate / bare:.2f} | {rate / torch_rate:.1f} | {shown} |")
    return rates


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=["softmax", "2nn"], nargs="*", default=["softmax", "2nn"])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", help="also write the rates to this file")
    arguments = parser.parse_args()
    plans = {"softmax": (40, 3000), "2nn": (40, 600)}
    results = {name: measure(name, plans[name][0], arguments.repeat, plans[name][1]) for name in arguments.workload}
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"backend": jax.default_backend(), "rates": results}, file, indent=2)
