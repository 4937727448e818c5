"""What the programs of a deployment say while their server is away: where they wait, how a run
ends, and how it goes on."""

import contextlib
import io
import logging
import re
import socket
import ssl
import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
import numpy as np
from deployed import experiment
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.experiments.results.store import RunDirectory
from fedax.flower.client.device import Device
from fedax.flower.client.relay import relay
from fedax.flower.deploy import app as deploy_app
from fedax.flower.deploy import keys, processes, trial, worker
from fedax.flower.deploy.app import mark_run
from fedax.flower.deploy.processes import Run, connection_failure
from fedax.flower.deploy.settings import Deployment
from fedax.flower.protocol.plan import PROTOCOL
from fedax.flower.protocol.wire import pack, unpack
from fedax.flower.server.in_process import LocalGrid


@pytest.fixture
def deployment(tmp_path):
    keys.write_certificates(tmp_path / "keys", "127.0.0.1")
    return Deployment(tmp_path, port=processes.free_port())


@contextlib.contextmanager
def tls_server(deployment):
    """A server at the address of a deployment that shakes hands and closes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        deployment.path("keys", "server.crt"), deployment.path("keys", "server.key")
    )
    with socket.create_server(("127.0.0.1", deployment.port)) as listener:
        over = threading.Event()

        def serve():
            while not over.is_set():
                with contextlib.suppress(OSError):
                    plain, _ = listener.accept()
                    with plain, context.wrap_socket(plain, server_side=True) as there:
                        there.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        over.set()
        socket.create_connection(("127.0.0.1", deployment.port)).close()
        thread.join()


def test_why_a_server_cannot_be_reached(deployment, tmp_path):
    assert connection_failure(deployment) == "Connection refused"
    with tls_server(deployment):
        assert connection_failure(deployment) is None
        keys.write_certificates(tmp_path / "other" / "keys", "127.0.0.1")
        other = Deployment(tmp_path / "other", port=deployment.port)
        message = (
            r"its certificate does not fit \S+/other/keys/ca.crt \(.*certificate verify "
            r"failed"
        )
        assert re.match(message, connection_failure(other) or "")
        with pytest.raises(fedax.FedaxError, match=message):
            processes.nodes(other)


def test_a_program_without_tls_is_no_server(deployment):
    with socket.create_server(("127.0.0.1", deployment.port)) as listener:

        def greet():
            plain, _ = listener.accept()
            with plain:
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                plain.recv(4096)

        thread = threading.Thread(target=greet)
        thread.start()
        assert "does not speak TLS" in (connection_failure(deployment) or "")
        thread.join()


@pytest.mark.parametrize("name", ["ca.crt", "trusted.yaml", "client-1"])
def test_a_client_without_its_files_is_refused(deployment, name):
    keys.write_client_key(deployment.path("keys"), 1)
    keys.sign(deployment.path("keys"), b"app")
    deployment.path("keys", name).unlink()
    with pytest.raises(
        fedax.InvalidInput,
        match=rf"keys/{name}: no such file. Client 1 needs "
        r"ca.crt, trusted.yaml, client-1 from",
    ):
        trial.run_client(deployment, 1, None, print)


def answers_of(answers):
    """A question for the runs of a server, whose answers are given; the last one stays."""
    left = list(answers)

    def runs(deployment):
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return runs


def run_in(status):
    return {7: Run(status, "")}


@pytest.fixture
def followed(monkeypatch, deployment):
    """Takes the log of a run from a text, and waits for nothing."""
    log = deployment.path("logs", "run-7.log")
    log.parent.mkdir()
    log.write_text("")
    stream = SimpleNamespace(poll=lambda: 0)
    monkeypatch.setattr(trial, "process", lambda *arguments: contextlib.nullcontext(stream))
    monkeypatch.setattr(trial, "connection_failure", lambda deployment: None)
    monkeypatch.setattr(trial, "LOST", 0.0)
    monkeypatch.setattr(trial.time, "sleep", lambda seconds: None)
    return log


@pytest.mark.parametrize(("status", "shown"), [("failed", ["round 5"]), ("stopped", [])])
def test_the_lines_of_a_run_are_shown(status, shown, followed, deployment, monkeypatch):
    """Whole lines; the last words of a stopped run are about requests that are refused."""
    followed.write_text("round 5\ncut o")
    said = []
    monkeypatch.setattr(trial, "runs", answers_of([run_in(f"finished:{status}")]))
    assert trial.follow(deployment, 7, said.append) == trial.Result(7, False, status)
    assert said == shown


def test_a_server_that_is_gone_ends_what_follows_its_run(followed, deployment, monkeypatch):
    monkeypatch.setattr(trial, "connection_failure", lambda deployment: "Connection refused")
    said = []
    with pytest.raises(trial.ServerLost, match="has ended during run 7"):
        trial.follow(deployment, 7, said.append)
    assert said == []


def test_a_new_server_ends_what_follows_the_run_of_the_old_one(followed, deployment, monkeypatch):
    monkeypatch.setattr(trial, "runs", answers_of([run_in("running"), {}]))
    with pytest.raises(trial.ServerLost, match="no longer knows run 7"):
        trial.follow(deployment, 7, print)


def test_one_request_that_fails_is_not_a_lost_server(followed, deployment, monkeypatch):
    monkeypatch.setattr(trial, "LOST", 60.0)
    failures = ["Connection refused", "Connection refused"]
    monkeypatch.setattr(
        trial, "connection_failure", lambda deployment: failures.pop() if failures else None
    )
    monkeypatch.setattr(
        trial, "runs", answers_of([run_in("running"), run_in("finished:completed")])
    )
    assert trial.follow(deployment, 7, print).complete
    assert not failures


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "resume"])
@pytest.mark.parametrize("end", ["lost", "interrupted", "failed"])
def test_how_a_run_is_continued_is_said_at_its_end(tmp_path, monkeypatch, command, end):
    """By a server that has ended as by Ctrl-C, which leaves the run at the server."""
    folder, out = tmp_path / "d", tmp_path / "out"
    file = experiment(tmp_path / "experiment.toml", ["fedavg"], clients=3)
    made = CliRunner().invoke(app, ["deploy", "init", str(folder), "--experiment", str(file)])
    assert made.exit_code == 0, made.output

    def follow(deployment, number, say):
        if end == "failed":
            RunDirectory.create(out, "a run")
            return trial.Result(7, False, "failed client 1: offline.")
        raise {
            "lost": trial.ServerLost("the server at a:1 has ended during run 7."),
            "interrupted": KeyboardInterrupt(),
        }[end]

    monkeypatch.setattr(trial, "submit", lambda deployment, out, resume: 7)
    monkeypatch.setattr(trial, "follow", follow)
    monkeypatch.setattr(processes, "connection_failure", lambda deployment: None)
    arguments = ["--out", str(out)] if command == "run" else [str(out)]
    done = CliRunner().invoke(app, ["deploy", command, str(folder), *arguments])
    if end == "interrupted":
        assert done.exit_code == 130
        assert f"Run 7 goes on at the server, and its results go to {out}." in done.output
        assert f"Its output goes to {folder / 'logs' / 'run-7.log'}." in done.output
        assert f"`fedax deploy stop {folder}` stops it." in done.output
        return
    assert done.exit_code == 2
    if end == "failed":
        assert "run 7 did not complete: failed client 1: offline." in done.output
        assert f"`fedax deploy resume {folder} {out}` continues it." in done.output
        closed = RunDirectory.load(out)
        assert (closed.status, closed.reason) == ("failed", "failed client 1: offline")
        return
    assert f"Start it again with `fedax deploy server {folder}`." in done.output
    assert (
        f"`fedax deploy resume {folder} {out}` continues the run from its newest checkpoint."
        in done.output
    )


def test_unfinished_runs_are_stopped(deployment, monkeypatch):
    deployment.save()
    found = {3: Run("finished:failed", ""), 4: Run("running", ""), 5: Run("pending", "")}
    asked = []
    monkeypatch.setattr(trial, "runs", lambda deployment: found)
    monkeypatch.setattr(trial, "flwr", lambda deployment, *arguments: asked.append(arguments))
    done = CliRunner().invoke(app, ["deploy", "stop", str(deployment.folder)])
    assert done.exit_code == 0, done.output
    assert asked == [("stop", "4", "fedax"), ("stop", "5", "fedax")]
    assert "Run 4 is stopped." in done.output
    assert f"`fedax deploy resume {deployment.folder} DIR` continues a run" in done.output
    del found[4], found[5]
    done = CliRunner().invoke(app, ["deploy", "stop", str(deployment.folder)])
    assert done.stdout == "No run is going.\n"


def test_a_run_that_was_stopped_is_marked_so(deployment, tmp_path, monkeypatch):
    """Flower answers the requests of its ServerApp with 401 from then on."""
    deployment.save()

    def refused(experiment, out, display):
        RunDirectory.create(out, "a run")
        request = httpx.Request("POST", "https://127.0.0.1:9093/v1/runtime/pull-messages")
        httpx.Response(401, request=request).raise_for_status()

    monkeypatch.setattr(deploy_app, "_keep_warnings", lambda path: None)
    monkeypatch.setattr(Deployment, "experiment", lambda self, engine: None)
    monkeypatch.setattr(deploy_app, "run_experiment", refused)
    config = {"deployment": str(tmp_path), "out": str(tmp_path / "out"), "resume": False}
    with pytest.raises(httpx.HTTPStatusError):
        deploy_app._train(LocalGrid([]), config)
    found = RunDirectory.load(tmp_path / "out")
    assert (found.status, found.reason) == ("interrupted", "stopped")


def test_the_server_writes_the_output_of_a_run(deployment, monkeypatch):
    """So that it is whole when nobody follows the run, and without colours."""
    deployment.save()
    deployment.path("logs").mkdir()
    for name in ("end_with_parent", "set_up_jax"):
        monkeypatch.setattr(deploy_app, name, lambda *arguments: None)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO())
    logger = logging.StreamHandler(sys.stdout)  # as Flower's, which holds the stream

    def train(grid, config, registered):
        print("round 1")
        logger.emit(logging.makeLogRecord({"msg": "\x1b[91mERROR \x1b[0m: failed"}))
        sys.stderr.write("a warning\n")

    monkeypatch.setattr(deploy_app, "_train", train)
    grid = SimpleNamespace(run=SimpleNamespace(run_id=7))
    deploy_app.serve(grid, {"deployment": str(deployment.folder)})
    log = deployment.path("logs", "run-7.log").read_text()
    assert log == "round 1\nERROR : failed\na warning\n"
    assert sys.stdout.getvalue() == "round 1\n\x1b[91mERROR \x1b[0m: failed\n"


def test_the_first_reason_of_an_end_is_kept_until_the_run_goes_on(tmp_path):
    out = tmp_path / "out"
    mark_run(out, "failed", "there is no such folder")
    assert not out.exists()
    RunDirectory.create(out, "a run")
    for status, reason, expected in (
        ("failed", "client 1: offline", ("failed", "client 1: offline")),
        ("interrupted", "stopped", ("failed", "client 1: offline")),
        ("running", "", ("running", "")),
        ("interrupted", "stopped", ("interrupted", "stopped")),
    ):
        mark_run(out, status, reason)
        found = RunDirectory.load(out)
        assert (found.status, found.reason) == expected


@pytest.fixture
def asked(tmp_path):
    """A worker, and a function that asks it."""
    task = fedax.Task(0.0, lambda w, x: (w - x) ** 2 / 2, [[1.0], [5.0]])
    device, over = Device(task, 0, tmp_path, []), threading.Event()
    with worker.open_socket() as (listener, path):
        address = str(path)
        thread = threading.Thread(
            target=worker.work, args=(device, listener, lambda: not over.is_set())
        )
        thread.start()
        yield lambda content: relay(content, address), address, device
        over.set()
        thread.join()


HELLO = {"order": ConfigRecord({"version": PROTOCOL, "kind": "hello"})}


def test_a_client_app_hands_messages_on(asked):
    ask, _, device = asked
    content = RecordDict(
        HELLO | {"down": ArrayRecord({"0": Array(np.arange(3.0)), "1": Array(np.zeros((0, 2)))})}
    )
    assert ask(content) == device.answer(content)


def test_a_failure_of_the_worker_is_said_and_it_goes_on(asked, caplog):
    ask, address, device = asked
    with caplog.at_level(logging.WARNING, logger="fedax.flower.deploy"):
        with socket.socket(socket.AF_UNIX) as app:
            app.connect(address)
            app.sendall(b"no records")
            app.shutdown(socket.SHUT_WR)
            assert app.recv(1) == b""
        with pytest.raises(FileNotFoundError), socket.socket(socket.AF_UNIX) as app:
            app.connect(address + "-elsewhere")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a message was lost"
    ]
    assert ask(RecordDict(HELLO)) == device.answer(RecordDict(HELLO))


VALUES = {
    "a": 1,
    "b": 0.1,
    "c": True,
    "d": [b"\x00\n", b"x"],
    "e": b"y",
    "f": "text",
    "g": [0.5, 1e300],
}


def test_records_as_bytes():
    arrays = ArrayRecord({"0": Array(np.arange(4.0)), "1": Array(np.zeros((0, 2), np.float32))})
    scores = MetricRecord({"loss": 0.1, "counts": [1, 2]})
    records = RecordDict({"answer": ConfigRecord(VALUES), "up": arrays, "scores": scores})
    content = pack(records)
    found = unpack(content)
    assert found == records
    assert list(found) == list(records)
    for damaged in (content[:-1], content + b"x", b""):
        with pytest.raises(ValueError, match=r"(records of)|(Expecting)"):
            unpack(damaged)
