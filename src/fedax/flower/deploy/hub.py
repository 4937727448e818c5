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
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from fedax.flower.protocol.quiet import QUIET
from fedax.utils.lock import is_held

APP = "@fedax/fedax-app==1.0.0"
"""The app, as `flwr run` names it."""
AT_A_TIME = 4
"""Keys that are registered at a time."""
PAUSE = 2.0
AGAIN = 300.0
"""Seconds between two looks at the folder, and until a run is submitted again."""


class Hub(BaseHTTPRequestHandler):
    """Answers a SuperLink: where the app of this server is and who has signed it, and its bytes."""

    def do_GET(self) -> None:
        """Sends what there is under a path."""
        # a connection that is closed before all of its request was read is broken off
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = self.server.answers.get(self.path)  # type: ignore[attr-defined]
        self.send_response(404 if content is None else 200)
        self.end_headers()
        self.wfile.write(content or b"")

    do_POST = do_GET  # noqa: N815 (names of the standard library)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the server's log has what was asked for."""


def open_hub(folder: Path) -> ThreadingHTTPServer:
    """Returns a server on the loopback that has the signed app of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    signature = json.loads((folder / "keys" / "app.json").read_text())
    about = {
        "fab_url": f"http://127.0.0.1:{server.server_port}/app.fab",
        "verifications": [signature],
    }
    server.answers = {  # type: ignore[attr-defined]
        "/hub/fetch-fab": json.dumps(about).encode(),
        "/app.fab": (folder / "app.fab").read_bytes(),
    }
    return server


def look_after(folder: Path, environment: dict[str, str], superlink: int) -> None:
    """Registers the clients of a folder at its SuperLink, and submits runs that have crashed, until
    the SuperLink ends.

    Args:
        folder: of the server.
        environment: of Flower's commands.
        superlink: the number of its process, the parent of this one.
    """
    config = tomllib.loads((folder / "flower" / "config.toml").read_text())
    address = f"https://{config['superlink']['fedax']['address']}"
    # of this folder's certificate: the port may be taken by another program
    authority = ssl.create_default_context(cafile=folder / "keys" / "ca.crt")
    registered = set[Path]()
    submit_after: dict[Path, float] = {}

    def flwr(*words: str) -> None:
        subprocess.run(["flwr", *words], env=environment, stdin=subprocess.DEVNULL, check=False)

    while os.getppid() == superlink:
        time.sleep(PAUSE)
        try:
            httpx.get(address, verify=authority, timeout=PAUSE, trust_env=False)
        except httpx.HTTPError:
            continue  # it is just starting
        new = set(folder.glob("keys/client-*.pub")) - registered
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for key in sorted(new):
                pool.submit(flwr, "supernode", "register", str(key), "fedax", "--name", key.stem)
        registered |= new
        for run in find_crashed(folder):
            if time.monotonic() > submit_after.get(run, 0.0):
                submit_after[run] = time.monotonic() + AGAIN
                print(f"{run} was ended by a crash, and goes on.", flush=True)
                flwr("run", APP, "fedax", "--run-config", str(settings_of(run)))


def settings_of(run: Path) -> Path:
    """Returns the file with the settings of a run directory, from which the run is continued."""
    return run.with_name(f"{run.name}.toml")


def find_crashed(folder: Path) -> list[Path]:
    """Returns the run directories of a folder that are marked as running while no process works in
    them. A run that was stopped or has failed is none of them.
    """
    if os.environ.get("FEDAX_CONTINUE") == "0":
        return []
    return [
        path.parent
        for path in sorted(folder.glob("runs/*/summary.json"))
        if json.loads(path.read_text())["status"] == "running" and not is_held(path.parent)
    ]


def main(folder: Path, command: list[str]) -> None:
    """Becomes a SuperLink, with the hub as its child: who kills this process kills the SuperLink,
    after which the hub ends.
    """
    print(f"The server of {folder} starts. Runs that a crash ended go on after it.", flush=True)
    hub = open_hub(folder)
    direct = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))
    own = {
        "FLWR_SUPERGRID_API_URL": f"http://127.0.0.1:{hub.server_port}",
        "FLWR_HOME": str(folder / "flower"),
        "NO_PROXY": direct,
        "no_proxy": direct,
    }
    environment = os.environ | QUIET | own
    superlink = os.getpid()
    if os.fork():
        os.execvpe(command[0], command, environment)
    # of a terminal's Ctrl-C, which ends the SuperLink
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    look_after(folder, environment, superlink)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
