"""Client-samples per second: fedax beside a bare JAX loop and PyTorch eager, in one run on the same
machine.

Workloads are those of `benchmarks/peers`: softmax, 2NN, LeNet, MNIST CNN; PyTorch takes the first
two (the others: `layers.py`).

All take the same gradient steps: plain SGD on the same clients, batches and short last batches. The
bare loop has no federation at all: the rows of every step are drawn up beforehand, and the program
is one loop over steps with a gather, a gradient and an update. fedax draws cohorts, shuffles every
epoch, averages and keeps its history within its time.

    python benchmarks/throughput.py    # a table for each; --repeat, --workload to change
    taskset -c 0 python benchmarks/throughput.py    # on one core
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
sys.path.insert(0, str(Path(__file__).parent / "peers"))

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from workloads import WORKLOADS, data_of, mnist_file, schedule_of, task_of

import fedax
from fedax.utils.random import stream

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
# before JAX starts; without effect on other backends
jax.config.update("jax_num_cpu_devices", CORES)
NAMES = ("softmax", "2nn", "lenet", "mnist_cnn")
TORCH_STEPS = {"softmax": 3000, "2nn": 600}
"""The steps that PyTorch takes in a turn."""


class Workload:
    """A task, a schedule, and the rows of every step of its rounds."""

    def __init__(self, name):
        rng = np.random.default_rng(0)
        given = WORKLOADS[name]
        self.name = name
        self.model = given.model
        self.lr = given.rate
        self.rounds = given.long
        self.task = task_of(given, data_of(name, mnist_file())[0])
        self.schedule = schedule_of(given)
        offsets = np.asarray(self.task.train.offsets)
        root = jax.random.fold_in(jax.random.key(0), 1)
        rows = []
        counts = []
        batch = self.schedule.batch_size
        for t in range(self.rounds):
            ids, _ = self.schedule.draw(stream(root, "cohort", t, 0), jnp.asarray(offsets))
            for k in np.asarray(ids):
                for _ in range(self.schedule.epochs):
                    order = rng.permutation(offsets[k + 1] - offsets[k]) + offsets[k]
                    for begin in range(0, len(order), batch):
                        piece = order[begin : begin + batch]
                        rows.append(np.resize(piece, batch))
                        counts.append(len(piece))
        self.rows = np.array(rows, np.int32)
        self.counts = np.array(counts, np.int32)
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
    weights = jnp.asarray(
        (np.arange(work.schedule.batch_size) < work.counts[:, None]) / work.counts[:, None],
        jnp.float32,
    )
    params = work.task.start(jax.random.key(0))
    loss = work.task.loss

    @jax.jit
    def program(params, x, y, rows, weights):
        def step(i, params):
            batch = {"x": x[rows[i]], "y": y[rows[i]]}
            gradient = jax.grad(lambda p: jnp.sum(weights[i] * loss(p, batch, None)))(params)
            return jax.tree.map(lambda p, g: p - work.lr * g, params, gradient)

        return jax.lax.fori_loop(0, rows.shape[0], step, params)

    return lambda: jax.block_until_ready(program(params, x, y, rows, weights))


def torch_runner(work):
    """The first steps in PyTorch eager, all threads; its samples."""
    import torch

    x, y = (torch.from_numpy(np.asarray(work.task.train.arrays[name])) for name in ("x", "y"))
    y = y.long()
    limit = TORCH_STEPS[work.name]
    widths = (60, 10) if work.name == "softmax" else work.model.widths
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    criterion = torch.nn.CrossEntropyLoss()
    batches = [
        torch.from_numpy(r[:n].astype(np.int64))
        for r, n in zip(work.rows[:limit], work.counts[:limit], strict=True)
    ]

    def once():
        for batch in batches:
            optimizer.zero_grad()
            criterion(model(x[batch]), y[batch]).backward()
            optimizer.step()

    return once, int(work.counts[:limit].sum())


def measure(name, repeat):
    work = Workload(name)
    devices = len(jax.devices())
    contestants = {"fedax, 1 device": (fedax_runner(work, 1), work.samples)}
    if devices > 1:
        contestants[f"fedax, {devices} devices"] = (fedax_runner(work, devices), work.samples)
    contestants["bare JAX loop, 1 device"] = (bare_runner(work), work.samples)
    try:
        contestants |= {"PyTorch eager": torch_runner(work)} if name in TORCH_STEPS else {}
    except ImportError:
        print("PyTorch is not installed: pip install -r benchmarks/requirements.txt")
    first = {}
    times = {contestant: [] for contestant in contestants}
    for contestant, (once, _) in contestants.items():
        begun = time.perf_counter()
        once()
        first[contestant] = time.perf_counter() - begun
    for _ in range(repeat):  # interleaved, so that noise meets all alike
        for contestant, (once, _) in contestants.items():
            begun = time.perf_counter()
            once()
            times[contestant].append(time.perf_counter() - begun)
    rates = {
        contestant: contestants[contestant][1] / statistics.median(values)
        for contestant, values in times.items()
    }
    bare = rates["bare JAX loop, 1 device"]
    torch_rate = rates.get("PyTorch eager")
    print(
        f"\n{name}: {work.samples} samples in {work.rounds} rounds, batches of "
        f"{work.schedule.batch_size}; medians of {repeat}"
    )
    print("| | samples/s | of the bare loop | of PyTorch | compilation, s |")
    print("|---|---|---|---|---|")
    for contestant, rate in rates.items():
        compilation = max(first[contestant] - statistics.median(times[contestant]), 0)
        shown = "" if contestant == "PyTorch eager" else f"{compilation:.1f}"
        of_torch = f"{rate / torch_rate:.1f}" if torch_rate else ""
        print(f"| {contestant} | {rate:,.0f} | {rate / bare:.2f} | {of_torch} | {shown} |")
    return rates


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=[*NAMES], nargs="*", default=NAMES)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", help="also write the rates to this file")
    arguments = parser.parse_args()
    results = {name: measure(name, arguments.repeat) for name in arguments.workload}
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"backend": jax.default_backend(), "rates": results}, file, indent=2)
