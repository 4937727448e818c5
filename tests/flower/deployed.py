"""Experiments that are deployed in tests: their files, commands, results, and the same rounds in
one process."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

import fedax
from fedax.experiments.config.experiment import Experiment
from fedax.flower.client.device import Device
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


def fedax_command(*arguments, limit=600):
    command = [sys.executable, "-m", "fedax", *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def experiment(path, methods, rounds=5, clients=5):
    path.write_text(
        HEAD.format(rounds=rounds, clients=clients)
        + "".join(f'[[algorithm]]\nname = "{name}"\n' for name in methods)
    )
    return path


def models(out):
    """The final models of a run directory, arrays by name, in the order of the runs' titles."""
    titles = {
        run["id"]: (run["task"], run["algorithm"], run["seed"])
        for run in json.loads((out / "summary.json").read_text())["runs"]
    }
    return [
        fedax.load_params(out / "runs" / name / "model.safetensors")
        for name in sorted(titles, key=titles.__getitem__)
    ]


def check_equal(out, other):
    ours, theirs = models(out), models(other)
    assert len(ours) == len(theirs) > 0
    for one, two in zip(ours, theirs, strict=True):
        assert set(one) == set(two)
        for name in one:
            assert one[name].dtype == np.float32
            np.testing.assert_allclose(one[name], two[name], rtol=0, atol=1e-5, err_msg=name)


def left_out(folder):
    """Rounds and clients whose uploads the server did not take, as its log has them."""
    log = folder / "logs" / "training.log"
    found = re.findall(
        r"\w+\.train, round (\d+), client (\d+): left out: ",
        log.read_text() if log.exists() else "",
    )
    return [(int(t), int(k)) for t, k in found]


def replayed(place, file, lost):
    """The run directory of the same rounds in this process, in which some uploads are lost."""

    class Losing(LocalGrid):
        def answers(self, message):
            round, k = message.content["order"].get("round"), message.metadata.dst_node_id - 100
            return [] if (round, k) in lost else super().answers(message)

    with jax.enable_x64(False):
        plan = Experiment.read(file).plan()
        ((label, algorithm),) = plan.algorithms.items()
        given = plan.arguments_of(label)
        assignment = Assignment(algorithm, given["solver"], given["schedule"], given["channel"])
        devices = [
            Device(plan.task, k, place / "replayed" / str(k), [assignment]) for k in range(3)
        ]
        engine = fedax.Flower(Losing(devices), deadline=0.01)
        history = fedax.run(algorithm, plan.task, seed=3, **given | {"engine": engine})
    run = place / "alone" / "runs" / "replayed"
    run.mkdir(parents=True)
    fedax.save_params(history.params, run / "model.safetensors")
    runs = [{"id": run.name, "task": "", "algorithm": label, "seed": 3}]
    (place / "alone" / "summary.json").write_text(json.dumps({"runs": runs}))
    return place / "alone"


def newest(folder, k):
    """The newest round of which client k has kept a memory, -1 for none."""
    return max(
        (int(path.name[:9]) for path in (folder / "clients" / str(k)).rglob("*.npz")), default=-1
    )


def wait_for_round(folder, k, round):
    """Waits until client k has kept a memory of some round."""
    finish = time.monotonic() + 300
    while newest(folder, k) < round:
        assert time.monotonic() < finish, "no such round"
        time.sleep(0.1)


def wait_until_still(folder):
    """Waits until no client has kept anything for two seconds."""
    finish = time.monotonic() + 300
    seen, since = None, time.monotonic()
    while time.monotonic() < since + 2:
        assert time.monotonic() < finish, "it goes on"
        now = [newest(folder, k) for k in range(3)]
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.1)


def server_process(port):
    """The number of the server's process, by its port."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = command.read_bytes().split(b"\0")
            if (
                any(word.endswith(b"flower-superlink") for word in words[:5])
                and str(port).encode() in words
            ):
                return int(command.parent.name)
    raise AssertionError("no server")
