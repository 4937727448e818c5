"""A round over Flower beside the same work as a plain Flower app, interleaved in one run: python
benchmarks/deployment.py.

Real processes on the loopback: a SuperLink with TLS and authentication, SuperNodes, workers that
stay warm. Both send one vector to every client, where one compiled function trains, and average
what comes back. `plain` is a ServerApp by hand that looks for replies as often as fedax does;
`strategy` is Flower's own FedAvg, which looks every three seconds."""

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedax.flower.protocol.quiet import QUIET

os.environ |= QUIET

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.engine.round.phase import PhaseWork
from fedax.engine.round.single_client import run_single_client
from fedax.experiments.config.experiment import Experiment
from fedax.flower.client.relay import SOCKET
from fedax.flower.deploy.folder import build_app, make, pack
from fedax.flower.deploy.hub import APP
from fedax.flower.deploy.keys import sign
from fedax.flower.deploy.worker import device_for, work
from fedax.flower.server.roster import PAUSES
from fedax.observe.base import Observer
from fedax.utils.lock import held

EXPERIMENT = """
name = "overhead"
rounds = {rounds}
[task]
name = "digits"
clients = {clients}
model = "mlp"
[solver]
learning_rate = 0.05
[schedule]
epochs = {epochs}
batch_size = 10
[[algorithm]]
name = "fedavg"
"""
SERVER = """\
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    import sys

    sys.path.insert(0, {benchmarks!r})
    from deployment import serve

    serve(grid, context.run_config)
"""
WARM = 2
"""Rounds that do not count."""


class Both:
    """Answers orders of fedax, and messages of a plain app by the same compiled function."""

    def __init__(self, device):
        self.device = device
        (name,) = device.assignments
        self.known = device._cached_setup(name, 1, int(device.task.train.total))
        ((self.phase,),) = self.known.plan.phases.values()

    def answer(self, content):
        return self.device.answer(content) if "order" in content else self.trained(content)

    def trained(self, content):
        from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

        round = int(content["config"]["server-round"])
        vector = jnp.asarray(content["arrays"]["0"].numpy())
        down = jax.tree.unflatten(jax.tree.structure(self.phase.down), [vector])
        phase_work = PhaseWork(self.phase.work, down, jax.random.key(3), jnp.int32(round), 0)
        upload, _, _ = run_single_client(
            phase_work, self.known.setup, {}, jnp.int32(self.device.partition)
        )
        count = MetricRecord({"num-examples": int(self.device.task.train.total)})
        arrays = ArrayRecord({"0": Array(np.asarray(upload.value))})
        return RecordDict({"arrays": arrays, "metrics": count})


class After(Observer):
    """Whatever is done after a round."""

    what: Any = eqx.field(static=True)

    def __call__(self, view):
        self.what(view)
        return {"nothing": 0.0}


class Interleaved:
    """After every round of fedax a plain one and one of Flower's strategy, and how long all of them
    took."""

    def __init__(self, grid):
        self.grid, self.vector, self.since = grid, None, None
        self.seconds = {"fedax": [], "plain": [], "strategy": []}

    def __call__(self, view):
        if isinstance(view.w, jax.core.Tracer):  # the engine's check of observers
            return
        if self.since is not None:
            self.seconds["fedax"].append(time.monotonic() - self.since)
        if self.vector is None:
            self.vector = np.asarray(view.w)
        for name, a_round in (("plain", self.plain), ("strategy", self.strategy)):
            begun = time.monotonic()
            a_round(len(self.seconds[name]))
            self.seconds[name].append(time.monotonic() - begun)
        self.since = time.monotonic()

    def plain(self, t):
        from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

        arrays, config = ArrayRecord({"0": Array(self.vector)}), ConfigRecord({"server-round": t})
        content = RecordDict({"arrays": arrays, "config": config})
        nodes = list(self.grid.get_node_ids())
        messages = [
            Message(content, dst_node_id=node, message_type="train", group_id=str(t))
            for node in nodes
        ]
        waiting, replies, pause = set(self.grid.push_messages(messages)), [], PAUSES[0]
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply.content)
            if waiting:
                time.sleep(pause)
                pause = min(1.5 * pause, PAUSES[1])
        counts = [reply["metrics"]["num-examples"] for reply in replies]
        self.vector = np.average(
            [reply["arrays"]["0"].numpy() for reply in replies], axis=0, weights=counts
        )
        self.vector = self.vector.astype(np.float32)

    def strategy(self, t):
        from flwr.app import Array, ArrayRecord
        from flwr.serverapp.strategy import FedAvg

        way = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1
        )
        way.start(
            grid=self.grid, initial_arrays=ArrayRecord({"0": Array(self.vector)}), num_rounds=1
        )


def serve(grid, config):
    """In the ServerApp: all rounds, then the medians."""
    plan = Experiment.read(Path(str(config["folder"])) / "experiment.toml").plan()
    ((label, algorithm),) = plan.algorithms.items()
    engine = fedax.Flower(grid)
    seen = Interleaved(grid)
    given = plan.arguments_of(label) | {
        "engine": engine,
        "observe": [After(seen)],
        "observe_every": 1,
    }
    fedax.run(algorithm, plan.task, seed=3, **given)
    shown = {name: values[WARM:] for name, values in seen.seconds.items()}
    middle = {name: statistics.median(values) for name, values in shown.items()}
    for name, values in shown.items():
        low, high = np.quantile(values, (0.25, 0.75))
        print(
            f"RESULT | {name} | {middle[name]:.3f} | {low:.3f} to {high:.3f} | "
            f"{middle['fedax'] / middle[name]:.2f} |"
        )
    ratios = np.array(shown["fedax"]) / np.array(shown["plain"][: len(shown["fedax"])])
    print(f"RESULT fedax of plain, by pairs of rounds: {np.median(ratios):.2f}")


def client(site):
    """The worker of a client, which answers both kinds of messages, and its SuperNode."""
    both: Any = Both(device_for(site))
    os.chdir(site)
    with socket.socket(socket.AF_UNIX) as listener, held(Path(), "worker.lock"):
        listener.bind(SOCKET)
        listener.listen()
        with subprocess.Popen(["sh", "client.sh"]) as node:
            work(both, listener, lambda: node.poll() is None)


def start(stack, *command):
    """Starts a process that is killed with all its children at the end."""
    child = subprocess.Popen(command, start_new_session=True)
    stack.callback(os.killpg, child.pid, signal.SIGKILL)


def main(clients, rounds, epochs):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, file = Path(name) / "d", Path(name) / "experiment.toml"
        file.write_text(EXPERIMENT.format(clients=clients, rounds=rounds + WARM, epochs=epochs))
        os.environ["FLWR_HOME"] = str(folder / "flower")
        make(file, folder, [], clients, "127.0.0.1", 19093, 0.0)
        server = SERVER.format(benchmarks=str(Path(__file__).parent))
        (folder / "fedax_app" / "server.py").write_text(server)
        bundle = build_app(folder)
        (folder / "app.fab").write_bytes(bundle)
        sign(folder / "keys", bundle)
        start(stack, "sh", folder / "server.sh")
        for k in range(clients):
            start(stack, sys.executable, __file__, "--client", pack(folder, k, ""))
        submit = ["flwr", "run", APP, "fedax", "--stream"]
        # the server may be just starting
        while subprocess.run(submit, check=False).returncode:
            time.sleep(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--client", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client is not None:
        client(given.client)
    else:
        main(given.clients, given.rounds, given.epochs)
