"""Runs Flower's SuperLink with the signed app of a folder, and continues runs after crashes.

    python -m fedax.flower.deploy.hub FOLDER flower-superlink ...

A SuperNode that is started with `--trusted-entities` runs an app only if a key in that file has
signed it. A SuperLink takes signatures from Flower's hub alone. This program therefore plays a hub
on the loopback of its machine, which has this one app, and names it to the SuperLink.

The SuperLink keeps registered keys and runs in its memory. This program registers the keys of
`FOLDER/keys` and submits the runs that a crash ended, unless `FEDAX_CONTINUE=0` is set.

Unpublished contracts of Flower 1.42 that fedax uses: the variable FLWR_SUPERGRID_API_URL with the
two answers below, and the form of signatures (`fedax.flower.deploy.keys.sign`).
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedax.flower.protocol.quiet import QUIET
from fedax.utils.lock import holder

APP_ID, VERSION = "@fedax/fedax-app", "1.0.0"
APP = f"{APP_ID}=={VERSION}"
"""The app, as `flwr run` names it."""
RUN_FILE = "flower-run.toml"
"""The file of a run directory with the run's configuration, from which it is continued."""
MOST = 1 << 16
"""The most bytes of a request to the hub."""
AT_A_TIME = 4
"""Keys that are registered at a time."""
PAUSE, AGAIN = 2.0, 300.0
"""Seconds between two looks at the folder, and until a run is submitted again."""


class Hub(BaseHTTPRequestHandler):
    """Answers a SuperLink: which app there is, who has signed it, and its bytes."""

    def do_POST(self) -> None:
        """Answers the question for an app with its address and its signature."""
        size = int(self.headers.get("Content-Length") or 0)
        request = json.loads(self.rfile.read(size)) if 0 < size <= MOST else {}
        is_served = request.get("app_id") == APP_ID
        is_served &= request.get("app_version") in (None, VERSION)
        self._send(self.path if is_served else "")

    def do_GET(self) -> None:
        """Sends the bundle."""
        self._send(self.path)

    def _send(self, path: str) -> None:
        answers: dict[str, bytes] = self.server.answers  # type: ignore[attr-defined]
        content = answers.get(path)
        missing = json.dumps({"detail": f"this server has {APP} alone"}).encode()
        self.send_response(404 if content is None else 200)
        self.end_headers()
        self.wfile.write(missing if content is None else content)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the server's log has what was asked for."""


def open_hub(folder: Path) -> ThreadingHTTPServer:
    """Returns a server on the loopback that has the signed app of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    signature = json.loads((folder / "keys" / "app.json").read_text())
    about = {"fab_url": f"{address_of(server)}/app.fab", "verifications": [signature]}
    server.answers = {  # type: ignore[attr-defined]
        "/hub/fetch-fab": json.dumps(about).encode(),
        "/app.fab": (folder / "app.fab").read_bytes(),
    }
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def address_of(server: ThreadingHTTPServer) -> str:
    """Returns the address of a hub."""
    return f"http://127.0.0.1:{server.server_port}"


class Caretaker:
    """Registers the clients of a folder at its SuperLink, and submits runs that have crashed.

    Args:
        folder: of the server.
        environment: of Flower's commands.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.registered: set[Path] = set()
        self.submitted: dict[Path, float] = {}
        config = tomllib.loads((folder / "flower" / "config.toml").read_text())
        host, _, port = config["superlink"]["fedax"]["address"].rpartition(":")
        self.address = host.strip("[]"), int(port)

    def look(self) -> None:
        """Does what there is to do, as soon as the SuperLink listens."""
        with socket.socket(socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET) as probe:
            if probe.connect_ex(self.address):
                return
        new = set(self.folder.glob("keys/client-*.pub")) - self.registered
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            pool.map(self._register, sorted(new))
        self.registered |= new
        crashed = find_crashed(self.folder) if os.environ.get("FEDAX_CONTINUE") != "0" else []
        for run in crashed:
            if time.monotonic() > self.submitted.get(run, 0.0):
                self.submitted[run] = time.monotonic() + AGAIN
                print(f"{run} was ended by a crash, and goes on.", flush=True)
                self._flwr("run", APP, "fedax", "--run-config", str(run / RUN_FILE))

    def _register(self, key: Path) -> None:
        self._flwr("supernode", "register", str(key), "fedax", "--name", key.stem)

    def _flwr(self, *words: str) -> None:
        subprocess.run(
            ["flwr", *words], env=self.environment, stdin=subprocess.DEVNULL, check=False
        )


def find_crashed(folder: Path) -> list[Path]:
    """Returns the run directories of a folder that are marked as running while no process works in
    them. A run that was stopped or has failed is none of them.
    """
    return [
        path.parent
        for path in sorted(folder.glob(f"runs/*/{RUN_FILE}"))
        if json.loads((path.parent / "summary.json").read_text())["status"] == "running"
        and holder(path.parent) is None
    ]


def main(folder: Path, command: list[str]) -> int:
    """Runs a SuperLink until it ends, and returns its exit code."""
    hub = open_hub(folder)
    direct = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))
    environment = (
        os.environ
        | QUIET
        | {
            "FLWR_SUPERGRID_API_URL": address_of(hub),
            "FLWR_HOME": str(folder / "flower"),
            "NO_PROXY": direct,
            "no_proxy": direct,
        }
    )
    caretaker = Caretaker(folder, environment)
    with subprocess.Popen(command, env=environment) as superlink:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: superlink.terminate())
        while superlink.poll() is None:
            caretaker.look()
            time.sleep(PAUSE)
    return superlink.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
