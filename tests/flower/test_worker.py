"""A client's worker: started by the first message, warm for the next ones, gone with its SuperNode."""

import os
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Listener

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import numpy as np
from deployed import experiment, wait_until
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import fedax
from fedax.flower.client.relay import SOCKET, relay
from fedax.flower.client.worker import Worker
from fedax.flower.deploy.worker import SITE, serve
from fedax.utils.lock import held

CLIENT_APP = """
import sys
from flwr.app import ConfigRecord, RecordDict
from fedax.flower.client.relay import relay
hello = RecordDict({"order": ConfigRecord({"kind": "hello"})})
print(relay(hello, sys.argv[1])["answer"]["train"], flush=True)
"""
NODE = """
import os, subprocess, sys
for _ in range(2):
    subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]], check=True)
    print(os.stat(sys.argv[2] + "/" + sys.argv[3]).st_ino, flush=True)
"""


@pytest.mark.slow
def test_the_first_message_starts_a_worker_that_ends_with_its_node(tmp_path):
    experiment(tmp_path / "experiment.toml", ["fedavg"], clients=3)
    settings = 'partition = 1\nclients = 3\nsecure = 0.0\ndata = ""\n'
    (tmp_path / SITE).write_text(settings)
    node = subprocess.run(
        [sys.executable, "-c", NODE, CLIENT_APP, str(tmp_path), SOCKET],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    sizes = node.stdout.split()[::2]
    numbers = node.stdout.split()[1::2]
    assert sizes[0] == sizes[1]
    assert int(sizes[0]) > 0
    assert numbers[0] == numbers[1]
    wait_until(lambda: has_ended(tmp_path), "end of the worker", 60)


def has_ended(site):
    try:
        with held(site, "worker.lock"):
            return True
    except fedax.FedaxError:
        return False


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why_in_its_log_alone(tmp_path):
    """The ClientApp's error goes to the server."""
    (tmp_path / SITE).write_text("partition = ")
    node = subprocess.run(
        [sys.executable, "-c", CLIENT_APP, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "see its worker.log" in node.stderr
    assert "TOMLDecodeError" not in node.stderr
    assert "TOMLDecodeError" in (tmp_path / "worker.log").read_text()


def test_a_client_app_hands_messages_on(tmp_path, monkeypatch):
    """The worker goes on after a ClientApp that has ended before its message was whole."""
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0], [5.0]])
    worker = Worker(task, 0, tmp_path / "states", [])
    monkeypatch.chdir(tmp_path)
    listener = Listener(str(tmp_path / SOCKET), "AF_UNIX")
    threading.Thread(target=serve, args=(worker, listener), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as app:
        app.connect(SOCKET)
        app.sendall(b"\0")
    arrays = ArrayRecord({"0": Array(np.arange(3.0)), "1": Array(np.zeros((0, 2)))})
    hello = ConfigRecord({"kind": "hello"})
    content = RecordDict({"order": hello, "down": arrays})
    assert relay(content, str(tmp_path)) == worker.answer(content)
    # an error that is none of fedax may show examples, so its text stays here
    unknown = worker.answer({"order": ConfigRecord({"kind": "Anna"})})
    assert "Anna" not in unknown["answer"]["error"]
