"""Deployments by their own scripts and Flower's commands: real processes with TLS and keys, which
are killed and started again, and strangers."""

import datetime
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from deployed import (
    Programs,
    check_equal,
    experiment,
    free_port,
    left_out,
    newest,
    replayed,
    status_of,
    wait_until,
)

from fedax.flower.deploy import keys
from fedax.flower.deploy.keys import write_certificate, write_key_pair

pytestmark = pytest.mark.slow

ROGUE = 2
REASONS = {
    1: "upload: 28 bytes, expected 2600",
    2: "its upload is not finite",
    3: r"an answer of client 2 to order \w+, not to \w+",
    4: "no answer within 25 seconds|Message Unavailable",
    5: "no answer within 25 seconds|Message Unavailable",
}


def dropping(place, methods, rounds):
    """An experiment of three clients that goes on without those that do not answer."""
    file = experiment(place / "experiment.toml", methods, rounds=rounds, clients=3)
    file.write_text(file.read_text().replace("seeds =", 'on_bad_client = "drop"\nseeds =', 1))
    return file


def test_a_killed_client_and_a_reboot(tmp_path):
    """SCAFFOLD. A client is killed and comes back; then all processes are killed and started again,
    and the run goes on by itself. It is stopped and continued.

    The result is that of the rounds with exactly the uploads that were taken: nothing is lost or
    counted twice."""
    file = dropping(tmp_path, ["scaffold"], rounds=6)
    with Programs(tmp_path, file) as programs:
        programs.start_all()
        programs.wait_for_nodes(3)
        programs.run("--run-config", "deadline=60.0")
        sites = programs.sites
        out = programs.folder / "runs" / "run"
        wait_until(lambda: newest(sites[0]) >= 1, "round 1")
        programs.kill("client-0")
        programs.start("client-0")
        wait_until(lambda: newest(sites[1]) >= 3, "round 3")
        for name in list(programs.running):
            programs.kill(name)
        assert status_of(out) == "running"
        kept = max(int(path.name.removeprefix("round-")) for path in out.rglob("round-*"))
        before = left_out(programs.refusals())
        programs.start_all()
        wait_until(lambda: newest(sites[1]) > kept, "round after the reboot")
        programs.wait_for_end()
        lost = left_out(programs.refusals())[len(before) :]
    # rounds that were begun and not kept were done again
    lost = {(t, k) for t, k in before if t < kept} | set(lost)
    check_equal(out, replayed(tmp_path, file, lost))


def test_strangers_and_a_rogue_are_refused(tmp_path):
    """Clients 0 and 1 train; client 2 has a key, and abuses it. Three strangers have none, another
    one, and another authority. An app that nobody has signed is not run by a client."""
    file = dropping(tmp_path, ["fedavg"], rounds=6)
    with Programs(tmp_path, file) as programs:
        for name in ("server", "client-0", "client-1"):
            programs.start(name)
        rogue = Path(__file__).with_name("rogue.py")
        wait_until(lambda: programs.log("server").count("Created node_id") == 3, "server")
        programs.start("rogue", sys.executable, rogue, programs.sites[ROGUE])
        programs.wait_for_nodes(3)
        programs.run("--run-config", "deadline=25.0")
        check_strangers(programs, tmp_path)
        check_other_apps(programs, tmp_path)
        out = programs.wait_for_end()
        log = programs.refusals()
        refused = dict(re.findall(r"round (\d+), client 2: left out: (.*)", log))
        said = programs.log("rogue")
    assert [int(t) for t in refused] == list(REASONS)
    for t, reason in REASONS.items():
        assert re.search(reason, refused[str(t)]), refused
    assert re.findall(r"sent again, asked for (\d+)", said) == ["0", "0"]
    check_equal(out, replayed(tmp_path, file, set(left_out(log))))


def test_a_server_whose_port_is_taken_ends_and_says_so(tmp_path):
    """By a program that answers nothing."""
    with Programs(tmp_path, dropping(tmp_path, ["fedavg"], rounds=1)) as programs:
        with socket.create_server(("127.0.0.1", programs.port)):
            assert programs.start("server").wait(30) != 0
        assert "address already in use" in programs.log("server")


def test_an_expired_certificate_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "LIFETIME", datetime.timedelta(minutes=-1))
    with Programs(tmp_path, dropping(tmp_path, ["fedavg"], rounds=1)) as programs:
        programs.start("server")
        programs.start("client-0")
        wait_until(lambda: "certificate has expired" in programs.log("client-0"), "reason", 60)


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
        with open(SAID, "a") as file:
            print("REPLY", reply.error.reason if reply.has_error() else reply.content, file=file)
    with open(SAID, "a") as file:
        print("ALL REPLIES", file=file)
"""
OTHER_CLIENT = """
from pathlib import Path

Path({marker!r}).touch()
"""


def check_other_apps(programs, place):
    marker = place / "marker"
    app = place / "other"
    said = place / "said"
    app.mkdir()
    said.touch()
    shutil.copy(programs.folder / "pyproject.toml", app)
    shutil.copytree(programs.folder / "fedax_app", app / "fedax_app")
    (app / "fedax_app" / "server.py").write_text(OTHER_SERVER.replace("SAID", repr(str(said))))
    client = app / "fedax_app" / "client.py"
    client.write_text(OTHER_CLIENT.format(marker=str(marker)) + client.read_text())
    assert programs.flwr("run", str(app), "fedax")["success"]
    wait_until(lambda: "ALL REPLIES" in said.read_text(), "replies")
    replies = re.findall("REPLY.*could not be verified", said.read_text())
    # the rogue of this test answers no messages of this kind
    assert len(replies) == 2, said.read_text()
    assert not marker.exists()


def check_strangers(programs, place):
    """None of them becomes a node, and each reads why."""
    reasons = {
        "no key": "All SuperNodes must be registered",
        "another key": "Failed to activate SuperNode",
        "another authority": "certificate verify failed",
    }
    for name in reasons:
        site = place / name
        shutil.copytree(programs.sites[0], site, ignore=shutil.ignore_patterns("*.sock"))
        if name == "no key":
            script = (site / "client.sh").read_text()
            option = "--auth-supernode-private-key client.key "
            assert option in script
            (site / "client.sh").write_text(script.replace(option, ""))
        if name == "another key":
            write_key_pair(site / "client.key", site / "client.pub")
        if name == "another authority":
            write_certificate(site, "127.0.0.1")
        programs.start(name, "sh", site / "client.sh", PORT=str(free_port()))
    for name, reason in reasons.items():
        wait_until(lambda name=name, reason=reason: reason in programs.log(name), reason)
        programs.kill(name)
    assert len(programs.flwr("supernode", "list", "fedax")["nodes"]) == 3
