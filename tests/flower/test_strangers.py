"""A real server with strangers and a client that breaks every rule: each is refused by name, and
the run goes on without them."""

import contextlib
import re
import shutil
import ssl
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
from deployed import check_equal, experiment, fedax_command, left_out, replayed, server_process

from fedax.flower.deploy.keys import certificates, client_key
from fedax.flower.deploy.processes import environment, free_port, process, supernode, wait_until
from fedax.flower.deploy.settings import FILE, Deployment
from fedax.flower.deploy.trial import client_process, follow, run_server, submit

ROGUE = 2
REASONS = {
    1: r"upload, array 0: float32 of shape \(7,\), expected float32 of shape \(650,\)",
    2: "its upload is not finite",
    3: r"an answer of client 2 to order \w+, not to \w+",
    4: "no answer within 40 seconds|Message Unavailable",
    5: "Message Unavailable",
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
    settings = folder / FILE
    settings.write_text(settings.read_text().replace("upload_limit = 256.0", "upload_limit = 32.0"))
    deployment = Deployment.load(folder)
    with run_server(deployment, lambda line: None) as control, contextlib.ExitStack() as stack:
        for k in (0, 1):
            stack.enter_context(client_process(deployment, k))
        rogue = [sys.executable, str(Path(__file__).with_name("rogue.py")), str(folder), str(ROGUE)]
        stack.enter_context(process(rogue, folder / "logs" / "rogue.log", environment(deployment)))
        number = submit(deployment, out, False)
        check_strangers(deployment, tmp_path, control)
        check_long_requests(deployment)
        assert follow(control, number, lambda line: None).complete
        assert peak_of_the_server(deployment.port) < 640  # with the gigabyte it would be 1200
        wait_for(folder / "logs" / "rogue.log", r"refused (\d+) of 256")
    check_the_rogue(folder)
    check_equal(out, replayed(tmp_path, file, set(left_out(folder))))


def check_strangers(deployment, place, control):
    """None of them becomes a node, and each reads why."""
    copies = [place / name for name in ("no key", "another key", "another authority")]
    for copy in copies:
        shutil.copytree(deployment.path("keys"), copy / "keys")
        shutil.copy(deployment.path(FILE), copy)
    client_key(copies[1] / "keys", 0)
    certificates(copies[2] / "keys", "127.0.0.1")
    logs = [place / f"{copy.name}.log" for copy in copies]
    before = {node.node_id for node in control.nodes()}
    with contextlib.ExitStack() as stack:
        started = []
        for copy, log in zip(copies, logs, strict=True):
            command = supernode(Deployment.load(copy), 0, free_port())
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
        assert {node.node_id for node in control.nodes()} == before
    assert "All SuperNodes must be registered" in logs[0].read_text()
    assert "Failed to activate SuperNode" in logs[1].read_text()
    told = deployment.path("logs", "server.log").read_text()
    for path in ("register-node", "activate-node"):
        assert re.search(
            rf"\[/v1/fleet/{path}\].*Attempted to register SuperNode with public "
            r"key",
            told,
        )


def check_long_requests(deployment):
    """More than 16 MB at once are not read, whoever sends them."""
    trusted = ssl.create_default_context(cafile=deployment.path("keys", "ca.crt"))
    url = f"https://{deployment.address}/v1/fleet/push-object"
    with httpx.Client(verify=trusted) as client:
        answer = client.post(url, content=bytes(17 << 20), timeout=60)
    assert answer.status_code == 413
    assert "request /v1/fleet/push-object of" in deployment.path("logs", "server.log").read_text()


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
    # 33 MB are taken, one of them for what describes arrays
    assert int(re.findall(r"refused (\d+) of 256", said)[0]) >= 256 - 33 // 4
    assert re.search(
        r"upload of client-2 \(node \d+\) refused: more than 34603008 bytes",
        (logs / "server.log").read_text(),
    )


def peak_of_the_server(port):
    """The most megabytes that the server had in memory."""
    status = Path("/proc", str(server_process(port)), "status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024


def wait_for(log, pattern):
    finish = time.monotonic() + 120
    while not re.search(pattern, log.read_text()):
        assert time.monotonic() < finish, log.read_text()[-2000:]
        time.sleep(0.2)
