"""What the programs of a deployment say while their server is away: where they wait, how a run
ends, and how it goes on."""

import contextlib
import logging
import re
import socket
import ssl
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
from deployed import experiment
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.flower.client.device import Device
from fedax.flower.deploy import keys, processes, trial, worker
from fedax.flower.deploy.processes import Control, connection_failure
from fedax.flower.deploy.settings import Deployment


@pytest.fixture
def deployment(tmp_path):
    keys.certificates(tmp_path / "keys", "127.0.0.1")
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
        keys.certificates(tmp_path / "other" / "keys", "127.0.0.1")
        other = Deployment(tmp_path / "other", port=deployment.port)
        message = (
            r"its certificate does not fit \S+/other/keys/ca.crt \(.*certificate verify "
            r"failed"
        )
        assert re.match(message, connection_failure(other) or "")
        control = Control(other)
        assert re.match(message, control.failure() or "")
        control.close()


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


def test_a_client_says_that_it_waits_and_that_the_server_is_there(deployment, monkeypatch):
    monkeypatch.setattr(trial, "PROBES", (0.01, 0.01))
    said = []

    def wait_for(count):
        finish = time.monotonic() + 30
        while len(said) < count:
            assert time.monotonic() < finish, said
            time.sleep(0.01)

    with trial.watch_connection(deployment, said.append):
        wait_for(1)
        time.sleep(0.1)  # several looks, one line
        with tls_server(deployment):
            wait_for(2)
        wait_for(3)
    address = f"127.0.0.1:{deployment.port}"
    waiting = f"Waiting for the server at {address}: Connection refused."
    assert said[:2] == [waiting, f"The server at {address} is there."]
    assert said[2].startswith(f"Waiting for the server at {address}: ")


@pytest.mark.parametrize("name", ["ca.crt", "client-1"])
def test_a_client_without_its_files_is_refused(deployment, name):
    keys.client_key(deployment.path("keys"), 1)
    deployment.path("keys", name).unlink()
    with pytest.raises(
        fedax.InvalidInput,
        match=rf"keys/{name}: no such file. Client 1 needs "
        r"ca.crt and client-1 from",
    ):
        trial.run_client(deployment, 1, None, print)


class Server(Control):
    """Stands in for the control of a server whose answers to a question for its runs are given."""

    def __init__(self, deployment, *answers):
        self.deployment, self.answers = deployment, list(answers)

    def failure(self):
        return None

    def runs(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        pass


REFUSED = httpx.ConnectError("[Errno 111] Connection refused")
LOG = """  [1/1] FedAvg: round 5/400
Traceback (most recent call last):
  File "client.py", line 1, in f
    g()
httpcore.ConnectError: refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "client.py", line 2, in f
httpx.ConnectError: refused
  [1/1] FedAvg: round 10/400
"""


def run_in(status, sub_status="", details=""):
    return {
        7: SimpleNamespace(
            status=SimpleNamespace(status=status, sub_status=sub_status, details=details)
        )
    }


@pytest.fixture
def followed(monkeypatch, deployment):
    """Takes the log of a run from a text, and waits for nothing."""
    log = deployment.path("logs", "run-7.log")
    log.parent.mkdir()
    log.write_text("")
    monkeypatch.setattr(trial, "process", lambda *arguments: contextlib.nullcontext())
    monkeypatch.setattr(trial, "LOST", 0.0)
    monkeypatch.setattr(trial.time, "sleep", lambda seconds: None)
    return log


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((run_in("running"), REFUSED), "has ended during run 7"),
        ((run_in("running"), {}), "no longer knows run 7"),
    ],
)
def test_a_lost_server_ends_what_follows_its_run(followed, deployment, answers, message):
    said = []
    with pytest.raises(trial.ServerLost, match=message):
        trial.follow(Server(deployment, *answers), 7, said.append)
    assert said == []


def test_one_request_that_fails_is_not_a_lost_server(followed, deployment, monkeypatch):
    monkeypatch.setattr(trial, "LOST", 60.0)
    done = run_in("finished", "completed")
    assert trial.follow(
        Server(deployment, run_in("running"), REFUSED, REFUSED, done), 7, print
    ).complete


def test_tracebacks_of_a_run_stay_in_its_log(followed, deployment):
    followed.write_text(LOG)
    said = []
    trial.follow(Server(deployment, run_in("finished", "failed")), 7, said.append)
    assert "httpx.ConnectError: refused" in said
    assert said.count(f"(A traceback is in {followed}.)") == 2
    assert not [line for line in said if "client.py" in line or line.startswith("Traceback")]
    assert said[0] == "  [1/1] FedAvg: round 5/400"
    assert said[-1] == "  [1/1] FedAvg: round 10/400"


@pytest.mark.parametrize("command", ["run", "resume"])
@pytest.mark.parametrize("end", ["lost", "interrupted"])
def test_how_a_run_is_continued_is_said_at_its_end(tmp_path, monkeypatch, command, end):
    """By a server that has ended as by Ctrl-C, which leaves the run at the server."""
    folder, out = tmp_path / "d", tmp_path / "out"
    file = experiment(tmp_path / "experiment.toml", ["fedavg"], clients=3)
    made = CliRunner().invoke(app, ["deploy", "init", str(folder), "--experiment", str(file)])
    assert made.exit_code == 0, made.output

    def follow(control, number, say):
        raise {
            "lost": trial.ServerLost("the server at a:1 has ended during run 7."),
            "interrupted": KeyboardInterrupt(),
        }[end]

    monkeypatch.setattr(trial, "submit", lambda deployment, out, resume: 7)
    monkeypatch.setattr(trial, "follow", follow)
    monkeypatch.setattr(processes, "Control", Server)
    arguments = ["--out", str(out)] if command == "run" else [str(out)]
    done = CliRunner().invoke(app, ["deploy", command, str(folder), *arguments])
    if end == "interrupted":
        assert done.exit_code == 130
        assert f"Run 7 goes on at the server, and its results go to {out}." in done.output
        assert f"FLWR_HOME={folder / 'flower'} flwr stop 7 fedax" in done.output
        return
    assert done.exit_code == 2
    assert f"Start it again with `fedax deploy server {folder}`." in done.output
    assert (
        f"`fedax deploy resume {folder} {out}` continues the run from its newest checkpoint."
        in done.output
    )


def test_a_task_that_is_lost_with_the_server_is_one_line(tmp_path, monkeypatch, caplog):
    from flwr.supercore import heartbeat
    from flwr.supernode.runtime import run_clientapp

    def lost(client):
        raise REFUSED

    task = fedax.tasks.from_loss(lambda w, x: (w - x) ** 2 / 2, 0.0, clients=[[1.0], [5.0]])
    device = Device(task, 0, tmp_path, [])
    pushed = []
    quiet = SimpleNamespace(start=lambda: None, stop=lambda: None)
    monkeypatch.setattr(
        worker, "_client", lambda address, token: SimpleNamespace(close=lambda: None)
    )
    monkeypatch.setattr(heartbeat, "HeartbeatSender", lambda beat: quiet)
    monkeypatch.setattr(heartbeat, "make_task_heartbeat_fn_http", lambda client: None)
    monkeypatch.setattr(run_clientapp, "pull_task_input", lost)
    monkeypatch.setattr(
        run_clientapp, "push_task_output", lambda **given: pushed.append(given["details"])
    )
    with caplog.at_level(logging.WARNING, logger="fedax.deploy"):
        worker._answer(device, "127.0.0.1:1", "token")
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage().startswith(
        "a task was lost, because the node of this client has ended or lost the server: "
    )
    assert len(pushed) == 1
