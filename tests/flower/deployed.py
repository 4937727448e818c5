"""Experiments that are deployed in tests: their files, programs, results, and the same rounds in one
process."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

import fedax
from fedax.experiments.config.experiment import Experiment
from fedax.flower.client.worker import Worker
from fedax.flower.deploy.folder import make, pack
from fedax.flower.deploy.hub import APP
from fedax.flower.protocol.plan import Assignment
from fedax.flower.server.in_process import LocalGrid

HEAD = """
name = "deployed"
rounds = {rounds}
observe_every = {rounds}
observe = ["train_loss"]
seeds = [3]
checkpoint_every = 1
[task]
name = "digits"
clients = {clients}
[solver]
learning_rate = 0.1
[schedule]
cohort = 3
batch_size = 50
"""

SETTINGS = {
    "out": "",
    "name": "",
    "clients": 3,
    "deadline": 5.5,
    "minimum": 1,
    "patience": 60.0,
    "most_examples": 0,
    "secure": 0.0,
}


def experiment(path, methods, rounds=5, clients=5):
    path.write_text(
        HEAD.format(rounds=rounds, clients=clients)
        + "".join(f'[[algorithm]]\nname = "{name}"\n' for name in methods)
    )
    return path


def models(out):
    """The final models of a run directory, arrays by name, in the order of the runs' titles."""
    titles = {
        run["id"]: (run["task"], run["label"], run["seed"])
        for run in json.loads((out / "summary.json").read_text())["runs"]
    }
    return [
        fedax.load_params(out / "runs" / name / "model.safetensors")
        for name in sorted(titles, key=titles.__getitem__)
    ]


def check_equal(out, other):
    ours = models(out)
    theirs = models(other)
    assert len(ours) == len(theirs) > 0
    for one, two in zip(ours, theirs, strict=True):
        assert set(one) == set(two)
        for name in one:
            assert one[name].dtype == np.float32
            np.testing.assert_allclose(one[name], two[name], rtol=0, atol=1e-5, err_msg=name)


def left_out(log):
    """Rounds and clients whose uploads the server did not take, as its log has them."""
    found = re.findall(r"\w+\.train, round (\d+), client (\d+): left out: ", log)
    return [(int(t), int(k)) for t, k in found]


def replayed(place, file, lost):
    """The run directory of the same rounds in this process, in which some uploads are lost."""

    class Losing(LocalGrid):
        def answers(self, message):
            round = message.content["order"].get("round")
            k = message.metadata.dst_node_id - 100
            return [] if (round, k) in lost else super().answers(message)

    with jax.enable_x64(False):
        task, given, label, assignment = only_run(file)
        workers = [Worker(task, k, place / "replayed" / str(k), [assignment]) for k in range(3)]
        engine = fedax.Flower(Losing(workers), deadline=0.01)
        history = fedax.run(assignment.algorithm, task, seed=3, **given | {"engine": engine})
    run = place / "alone" / "runs" / "replayed"
    run.mkdir(parents=True)
    fedax.save_params(history.params, run / "model.safetensors")
    runs = [{"id": run.name, "task": "", "label": label, "seed": 3}]
    (place / "alone" / "summary.json").write_text(json.dumps({"runs": runs}))
    return place / "alone"


def only_run(file, **options):
    """The task of an experiment with one method, the arguments of the run, its label and its
    assignment."""
    plan = Experiment.read(file).plan(**options)
    ((label, algorithm),) = plan.algorithms.items()
    given = plan.arguments_of(label)
    assignment = Assignment(algorithm, given["solver"], given["schedule"], given["channel"])
    return plan.task, given, label, assignment


def newest(site):
    """The newest round of which a client has kept a memory, -1 for none."""
    return max((int(path.name[:9]) for path in (site / "states").rglob("0*-*-*")), default=-1)


def wait_until(holds, what, limit=600):
    """Waits for something to hold."""
    finish = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < finish, f"no {what}"
        time.sleep(0.2)


class Programs:
    """The server and the clients of a deployment on this machine, by their scripts; a context
    manager that kills them.

    Args:
        place: where the experiment's file is, and the folders are made.
        file: the experiment, of three clients.
    """

    def __init__(self, place, file):
        self.place = place
        self.folder = place / "d"
        self.running = {}
        self.port = free_port()
        with jax.enable_x64(False):
            clients = make(file, self.folder, [], None, "127.0.0.1", self.port, 0.0)
        self.sites = [pack(self.folder, k, "") for k in range(clients)]
        path = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
        home = str(self.folder / "flower")
        self.environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PATH": path, "FLWR_HOME": home}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self.running):
            self.kill(name)

    def log(self, name):
        path = self.place / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def refusals(self):
        """What the ServerApp logs, over all its starts."""
        path = self.folder / "server.log"
        return path.read_text() if path.exists() else ""

    def start(self, name, *command, **more):
        """Starts a program with its output in a log: a command, or the script of a part."""
        scripts = {f"client-{k}": site / "client.sh" for k, site in enumerate(self.sites)}
        scripts["server"] = self.folder / "server.sh"
        command = command or ("sh", scripts[name])
        with (self.place / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(word) for word in command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment | {"PORT": str(free_port())} | more,
                start_new_session=True,
            )
        return self.running[name]

    def start_all(self):
        for name in ("server", *(f"client-{k}" for k in range(len(self.sites)))):
            self.start(name)

    def kill(self, name):
        """Kills a program with all its children, as a reboot does."""
        program = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()

    def flwr(self, *words):
        """What one of Flower's commands says about the server."""
        done = subprocess.run(
            ["flwr", *words, "--format", "json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return json.loads(done.stdout[done.stdout.index("{") :])

    def wait_for_nodes(self, count):
        def are_there():
            found = self.flwr("supernode", "list", "fedax")["nodes"]
            return sum(node["status"] == "online" for node in found) >= count

        wait_until(lambda: "Created node_id" in self.log("server"), "server")
        wait_until(are_there, "clients")

    def run(self, *options):
        """Submits a run, by Flower's own command."""
        return self.flwr("run", APP, "fedax", *options)

    def wait_for_end(self, limit=900):
        """Waits for the results of the run, and returns their folder."""
        out = self.folder / "runs" / "run"
        wait_until(lambda: (out / "summary.json").exists(), "run", limit)
        wait_until(lambda: status_of(out) != "running", "results", limit)
        assert status_of(out) == "finished", self.log("server")[-3000:]
        return out


def status_of(out):
    return json.loads((out / "summary.json").read_text())["status"]


def free_port():
    """A free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
