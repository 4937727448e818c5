"""The signed bundle of a deployment's Flower app, and the part of Flower's hub that serves it.

A SuperNode that is started with `--trusted-entities` runs an app only if a key in that file has
signed it. A SuperLink takes signatures from Flower's hub alone. The server of a deployment
therefore asks a hub on the loopback of its machine, which has this one app.
"""

import contextlib
import json
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedax.core import FedaxError
from fedax.errors import printable, short
from fedax.flower.deploy.keys import sign, write_public
from fedax.flower.deploy.processes import PATIENCE, environment
from fedax.flower.deploy.settings import Deployment

APP_ID, VERSION = "@fedax/fedax-app", "1.0.0"
APP = f"{APP_ID}=={VERSION}"
"""The app, as `flwr run` names it."""
BUNDLE = "app.fab"
MOST = 1 << 16
"""The most bytes of a request to the hub."""


def build_app(deployment: Deployment) -> None:
    """Bundles the app in the folder with `flwr build`, and signs the bundle.

    Clients need the new `keys/trusted.yaml`, because the key that signs is not kept.

    Raises:
        FedaxError: Flower refuses the app.
    """
    command = ["flwr", "build", "--app", str(deployment.path("app"))]
    with tempfile.TemporaryDirectory() as folder:
        completed = subprocess.run(
            command,
            cwd=folder,
            # the command imports the app, whose folder is listed and copied as it is
            env=environment(deployment) | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        bundles = list(Path(folder).glob("*.fab"))
        if completed.returncode or len(bundles) != 1:
            raise FedaxError(
                f"`flwr build` failed: {short(printable(completed.stdout + completed.stderr))}"
            )
        content = bundles[0].read_bytes()
    write_public(deployment.path(BUNDLE), content)
    sign(deployment.path("keys"), content)


@contextlib.contextmanager
def serve_app(deployment: Deployment) -> Iterator[dict[str, str]]:
    """Serves the signed bundle on the loopback while the block runs.

    Yields the environment in which a SuperLink asks this hub for apps.

    Raises:
        FedaxError: the folder has no signed bundle.
    """
    try:
        content = deployment.path(BUNDLE).read_bytes()
        signature = json.loads(deployment.path("keys", "app.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        hint = f"`fedax deploy renew {shlex.quote(str(deployment.folder))}` signs the app"
        raise FedaxError(f"no signed app in {deployment.folder}: {error}. {hint}.") from error
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        server.answers = {  # type: ignore[attr-defined]
            "/hub/fetch-fab": json.dumps(
                {"fab_url": f"{address}/{BUNDLE}", "verifications": [signature]}
            ).encode(),
            f"/{BUNDLE}": content,
        }
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        direct = {
            name: ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
            for name in ("no_proxy", "NO_PROXY")
        }
        try:
            yield {"FLWR_SUPERGRID_API_URL": address} | direct
        finally:
            server.shutdown()
            thread.join()


class Hub(BaseHTTPRequestHandler):
    """Answers a SuperLink: which app there is, who has signed it, and its bytes."""

    def do_POST(self) -> None:
        """Answers the question for an app with its address and its signature."""
        size = int(self.headers.get("Content-Length") or 0)
        request = json.loads(self.rfile.read(size)) if 0 < size <= MOST else {}
        served_apps = (APP_ID, None), (APP_ID, VERSION)
        if (request.get("app_id"), request.get("app_version")) in served_apps:
            self.do_GET()
        else:
            self._send(404, json.dumps({"detail": f"this server has {APP} alone"}).encode())

    def do_GET(self) -> None:
        """Sends the bundle."""
        answers: dict[str, bytes] = self.server.answers  # type: ignore[attr-defined]
        content = answers.get(self.path)
        self._send(404 if content is None else 200, content or b"{}")

    def _send(self, code: int, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the server's log has what was asked for."""
