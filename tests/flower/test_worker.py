"""A client's worker: started by the first message, warm for the next ones, gone with its SuperNode."""

import logging
import os
import socket
import subprocess
import sys
import threading

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import numpy as np
from deployed import experiment, wait_until
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

import fedax
from fedax.flower.client.device import Device
from fedax.flower.client.relay import SOCKET, relay
from fedax.flower.deploy import worker
from fedax.flower.protocol.plan import PROTOCOL
from fedax.flower.protocol.wire import pack, unpack

HELLO = {"order": ConfigRecord({"version": PROTOCOL, "kind": "hello"})}
CLIENT_APP = f"""
import sys
from flwr.app import ConfigRecord, RecordDict
from fedax.flower.client.relay import relay
hello = RecordDict({{"order": ConfigRecord({{"version": {PROTOCOL}, "kind": "hello"}})}})
print(relay(hello, sys.argv[1])["answer"]["train"], flush=True)
"""
NODE = """
import subprocess, sys
for _ in range(2):
    subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]], check=True)
    print(open(sys.argv[2] + "/worker.lock").read().split()[1], flush=True)
"""


def test_the_first_message_starts_a_worker_that_ends_with_its_node(tmp_path):
    experiment(tmp_path / "experiment.toml", ["fedavg"], clients=3)
    settings = 'partition = 1\nclients = 3\nsecure = 0.0\ndata = ""\n'
    (tmp_path / worker.SITE).write_text(settings)
    node = subprocess.run(
        [sys.executable, "-c", NODE, CLIENT_APP, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    sizes, numbers = node.stdout.split()[::2], node.stdout.split()[1::2]
    assert sizes[0] == sizes[1]
    assert int(sizes[0]) > 0
    assert numbers[0] == numbers[1]
    wait_until(lambda: not (tmp_path / SOCKET).exists(), "end of the worker", 60)


def test_a_worker_that_cannot_start_says_why(tmp_path):
    (tmp_path / worker.SITE).write_text("partition = ")
    node = subprocess.run(
        [sys.executable, "-c", CLIENT_APP, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "TOMLDecodeError" in node.stderr


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A client whose worker listens in the folder of the test."""
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0], [5.0]])
    device, over = Device(task, 0, tmp_path / "states", []), threading.Event()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(SOCKET)
        listener.listen()
        serve = lambda: worker.work(device, listener, lambda: not over.is_set())  # noqa: E731
        thread = threading.Thread(target=serve)
        thread.start()
        yield device
        over.set()
        thread.join()


def test_a_client_app_hands_messages_on(device, tmp_path):
    arrays = ArrayRecord({"0": Array(np.arange(3.0)), "1": Array(np.zeros((0, 2)))})
    content = RecordDict(HELLO | {"down": arrays})
    assert relay(content, str(tmp_path)) == device.answer(content)


def test_a_worker_goes_on_after_a_message_that_it_cannot_read(device, tmp_path, caplog):
    with (
        caplog.at_level(logging.WARNING, logger="fedax.flower.deploy"),
        socket.socket(socket.AF_UNIX) as app,
    ):
        app.connect(SOCKET)
        app.sendall(b"no records")
        app.shutdown(socket.SHUT_WR)
        assert app.recv(1) == b""
    assert len(caplog.records) == 1
    assert relay(RecordDict(HELLO), str(tmp_path)) == device.answer(RecordDict(HELLO))


def test_records_as_bytes():
    values = {"a": 1, "b": 0.1, "c": True, "d": [b"\x00\n", b"x"], "e": b"y", "g": [0.5, 1e300]}
    arrays = ArrayRecord({"0": Array(np.arange(4.0)), "1": Array(np.zeros((0, 2), np.float32))})
    scores = MetricRecord({"loss": 0.1, "counts": [1, 2]})
    records = RecordDict({"answer": ConfigRecord(values), "up": arrays, "scores": scores})
    content = pack(records)
    found = unpack(content)
    assert found == records
    assert list(found) == list(records)
    for damaged in (content[:-1], content + b"x", b""):
        with pytest.raises(ValueError, match=r"(records of)|(Expecting)"):
            unpack(damaged)
