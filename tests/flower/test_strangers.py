"""A real server with strangers and a client that breaks every rule: each is refused by name, and
the run goes on without them."""

import contextlib
import re
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from deployed import check_equal, experiment, fedax_command, left_out, replayed

from fedax.flower.deploy.keys import write_certificates, write_client_key
from fedax.flower.deploy.processes import (
    CONNECTION,
    environment,
    flwr,
    free_port,
    nodes,
    process,
    supernode_command,
    wait_until,
)
from fedax.flower.deploy.settings import FILE, Deployment
from fedax.flower.deploy.trial import client_process, follow, run_server, submit

ROGUE = 2
REASONS = {
    1: r"upload, array 0: float32 of shape \(7,\), expected float32 of shape \(650,\)",
    2: "its upload is not finite",
    3: r"an answer of client 2 to order \w+, not to \w+",
    4: "no answer within 40 seconds|Message Unavailable",
    5: "no answer within 40 seconds|Message Unavailable",
}


@pytest.mark.slow
def test_strangers_and_a_rogue_are_refused(tmp_path):
    """Clients 0 and 1 train; client 2 has a key, and abuses it. Three strangers have none, another
    one, and another authority."""
    folder, out = tmp_path / "d", tmp_path / "out"
    file = experiment(tmp_path / "experiment.toml", ["fedavg"], rounds=6, clients=3)
    file.write_text(file.read_text().replace("seeds =", 'on_bad_client = "drop"\nseeds =', 1))
    options = ["--clients", 3, "--port", free_port(), "--deadline", 40]
    assert fedax_command("deploy", "init", folder, "--experiment", file, *options).returncode == 0
    deployment = Deployment.load(folder)
    with run_server(deployment, lambda line: None), contextlib.ExitStack() as stack:
        for k in (0, 1):
            stack.enter_context(client_process(deployment, k))
        rogue = [sys.executable, str(Path(__file__).with_name("rogue.py")), str(folder), str(ROGUE)]
        stack.enter_context(process(rogue, folder / "logs" / "rogue.log", environment(deployment)))
        number = submit(deployment, out, False)
        check_strangers(deployment, tmp_path)
        check_other_apps(deployment, tmp_path)
        assert follow(deployment, number, lambda line: None).complete
    check_the_rogue(folder)
    check_equal(out, replayed(tmp_path, file, set(left_out(folder))))


OTHER_SERVER = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    order = RecordDict({"order": ConfigRecord({"kind": "hello"})})
    nodes = list(grid.get_node_ids())
    asked = [Message(order, dst_node_id=node, message_type="query") for node in nodes]
    for reply in grid.send_and_receive(asked, timeout=60):
        print("REPLY", reply.error.reason if reply.has_error() else reply.content, flush=True)
"""
OTHER_CLIENT = """
from pathlib import Path

Path({marker!r}).touch()
"""


def check_other_apps(deployment, place):
    """An app that nobody has signed is not run by a client, whoever starts it at the server."""
    marker, app = place / "marker", place / "other"
    shutil.copytree(deployment.path("app"), app)
    (app / "fedax_app" / "server.py").write_text(OTHER_SERVER)
    client = app / "fedax_app" / "client.py"
    client.write_text(OTHER_CLIENT.format(marker=str(marker)) + client.read_text())
    number, lines = int(flwr(deployment, "run", str(app), CONNECTION)["run-id"]), []
    assert follow(deployment, number, lines.append).complete
    replies = [line for line in lines if "REPLY" in line]
    # the rogue of this test answers no messages of this kind
    assert len([line for line in replies if "could not be verified" in line]) == 2, lines
    assert not marker.exists()
    assert "The FAB could not be verified" in deployment.path("logs", "client-0.log").read_text()


def check_strangers(deployment, place):
    """None of them becomes a node, and each reads why."""
    copies = [place / name for name in ("no key", "another key", "another authority")]
    for copy in copies:
        shutil.copytree(deployment.path("keys"), copy / "keys")
        shutil.copy(deployment.path(FILE), copy)
    write_client_key(copies[1] / "keys", 0)
    write_certificates(copies[2] / "keys", "127.0.0.1")
    logs = [place / f"{copy.name}.log" for copy in copies]
    before = set(nodes(deployment))
    with contextlib.ExitStack() as stack:
        started = []
        for copy, log in zip(copies, logs, strict=True):
            command = supernode_command(Deployment.load(copy), 0, free_port(), place / "worker")
            if copy.name == "no key":
                at = command.index("--auth-supernode-private-key")
                del command[at : at + 2]
            started.append(stack.enter_context(process(command, log, environment(deployment))))
        assert [one.wait(90) != 0 for one in started[:2]] == [True, True]
        wait_until(
            lambda: "certificate verify failed" in logs[2].read_text(),
            "the reason",
            started[2],
            logs[2],
        )
        assert set(nodes(deployment)) == before
    assert "All SuperNodes must be registered" in logs[0].read_text()
    assert "Failed to activate SuperNode" in logs[1].read_text()
    told = deployment.path("logs", "server.log").read_text()
    for path in ("register-node", "activate-node"):
        assert re.search(
            rf"\[/v1/fleet/{path}\].*Attempted to register SuperNode with public "
            r"key",
            told,
        )


def check_the_rogue(folder):
    logs = folder / "logs"
    refused = dict(
        re.findall(r"round (\d+), client 2: left out: (.*)", (logs / "training.log").read_text())
    )
    assert [int(t) for t in refused] == list(REASONS)
    for t, reason in REASONS.items():
        assert re.search(reason, refused[str(t)]), refused
    said = (logs / "rogue.log").read_text()
    assert re.findall(r"sent again, asked for (\d+)", said) == ["0", "0"]
