"""The Flower app of a deployment: a folder that `flwr run` takes, and the two functions that it
calls.
"""

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from http.client import UNAUTHORIZED
from pathlib import Path
from typing import Any

from rich.console import Console

from fedax.core import FedaxError, InvalidInput, RunExists
from fedax.engine.round.client import Setup
from fedax.experiments.results.store import RunDirectory, Status
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from fedax.experiments.running.setup import set_up_jax
from fedax.flower.deploy.keys import public_key, write_private
from fedax.flower.deploy.processes import end_with_parent, keep_output, run_log
from fedax.flower.deploy.settings import Deployment, quote
from fedax.flower.server import Flower
from fedax.flower.server.engine import use_engine
from fedax.utils.files import read_text, write, writing
from fedax.utils.lock import held

RUN_NAME = "flower-run.txt"
"""The file of a run directory with the name under which clients keep the states of the run."""
SECRET_BYTES = 32
MOMENT = 60.0
"""Seconds that a server which is ending may hold its run directory."""
PROJECT = """\
# A Flower app: `fedax deploy run` starts it, and so does `flwr run`.
[project]
name = "fedax-app"
version = "1.0.0"
description = "An experiment of fedax"
license = "Apache-2.0"
dependencies = ["flwr==1.42.*"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedax"

[tool.flwr.app.components]
serverapp = "fedax_app.server:app"
clientapp = "fedax_app.client:app"

[tool.flwr.app.config]
deployment = {deployment}  # the folder with deployment.toml, on the server
out = ""  # the run directory, new or empty; or one that is to be continued, with resume = true
resume = false
"""
SERVER = '''\
"""The server: rounds, sampling, aggregation, checkpoints, results."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from fedax.flower.deploy.app import serve

    serve(grid, context.run_config)
'''
CLIENT = '''\
"""A client: hands messages on to the worker of `fedax deploy client`, or answers them itself."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    if "worker" in context.node_config:
        from fedax.flower.client.relay import relay

        return Message(relay(message.content, str(context.node_config["worker"])), reply_to=message)
    from fedax.flower.deploy.worker import device_of

    # never `context.run_config`: that comes from the server, and would name a file that is run
    device = device_of(context.node_config)
    return Message(device.answer(message.content), reply_to=message)
'''


def write_app(folder: Path, deployment: Path) -> None:
    """Writes the app's files."""
    files = {
        "pyproject.toml": PROJECT.format(deployment=quote(deployment)),
        "fedax_app/__init__.py": '"""An experiment of fedax as a Flower app."""\n',
        "fedax_app/server.py": SERVER,
        "fedax_app/client.py": CLIENT,
    }
    for name, text in files.items():
        path = folder / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, text)


def _keep_warnings(path: Path) -> None:
    """Shows the library's warnings, such as who was left out, and keeps them; nothing that others
    log, which would be sent too.
    """
    log = logging.getLogger("fedax")
    path.parent.mkdir(parents=True, exist_ok=True)
    for handler in (logging.StreamHandler(), logging.FileHandler(path)):
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
    log.propagate = False


def serve(grid: Any, config: Any) -> None:
    """Runs, or continues, the experiment into its run directory: the main function of the
    ServerApp.

    Args:
        grid: of Flower.
        config: of the run: `deployment`, `out`, `resume`.
    """
    end_with_parent()  # a server that is gone leaves nobody who works on
    deployment = Deployment.load(Path(str(config["deployment"])))
    keep_output(run_log(deployment, grid.run.run_id))
    set_up_jax(1)
    _train(grid, config, lambda: owners_of(deployment, grid))


def _train(
    grid: Any, config: Any, registered: Callable[[], Mapping[int, int]] | None = None
) -> None:
    deployment = Deployment.load(Path(str(config["deployment"])))
    _keep_warnings(deployment.path("logs", "training.log"))
    if not config["out"]:
        raise InvalidInput.of("out", "", "the path of the run directory")
    out = Path(str(config["out"]))
    options = {
        name: getattr(deployment, name)
        for name in ("clients", "deadline", "minimum", "patience", "checkpoint_seconds")
    }
    display = Display(Console(width=120))
    options |= {
        "secret": _load_secret(deployment),
        "largest": deployment.largest,
        "secure": deployment.secure or None,
    }
    options |= {"most_examples": deployment.most_examples or None, "registered": registered}
    engine = DeployedRun(grid, out, **options)
    try:
        with use_engine(engine):
            if config["resume"]:
                mark_run(out, "running", "")
                directory = _resume_run(out, display)
            else:
                directory = run_experiment(deployment.experiment("flower"), out, display)
    except Exception as error:
        # Flower refuses all requests of a run that was stopped
        if getattr(getattr(error, "response", None), "status_code", None) == UNAUTHORIZED:
            mark_run(out, "interrupted", "stopped")
        else:
            mark_run(out, "failed", str(error) or type(error).__name__)
        raise
    print(directory.line())


class DeployedRun(Flower):
    """The engine of one run directory, which has the run's name in its file `flower-run.txt`.

    The path is no name: clients keep their states and messages after the folder is removed, and
    would use them in a new run of the same path.

    Args:
        grid: of Flower.
        out: the run directory; it has to exist when the run begins.
        options: of `Flower`.
    """

    def __init__(self, grid: Any, out: Path, **options: Any) -> None:
        super().__init__(grid, **options)
        self.out = out

    def prepared(self, setup: Setup) -> Setup:
        # the run directory exists by now, and no message has been sent yet
        self.run = load_run_name(self.out)
        return super().prepared(setup)


def load_run_name(out: Path) -> str:
    """Returns the name of the run in a run directory. A run without one gets a random name, which
    is written before it is used.

    Raises:
        InvalidInput: the file is empty.
        WriteFailed: a full disk, for example.
    """
    path = out / RUN_NAME
    if path.exists():
        if not (name := read_text(path).strip()):
            hint = "It has the name under which clients keep the states of this run."
            raise InvalidInput.because(str(path), "an empty file", hint)
        return name
    name = uuid.uuid4().hex
    with writing(path):
        write(path, f"{name}\n")
    return name


def mark_run(out: Path, status: Status, reason: str) -> None:
    """Marks a run directory as running, or as ended with the reason; the first reason is kept."""
    # an error here must not hide the one that ended the run
    with contextlib.suppress(FedaxError, OSError), held(out):
        directory = RunDirectory.load(out, repair=True)
        if "running" in (status, directory.status):
            directory.close(status, reason)


def owners_of(deployment: Deployment, grid: Any) -> dict[int, int]:
    """Returns, by Flower's node, the client whose public key in the folder the node holds."""
    keys = {public_key(deployment.path("keys"), k): k for k in range(deployment.clients)}
    return {
        node.node_id: keys[node.public_key] for node in grid.get_nodes() if node.public_key in keys
    }


def _load_secret(deployment: Deployment) -> bytes:
    """Returns the server's secret, of the noise of privacy and of cohorts that it hides. A run that
    is continued has the same.

    Raises:
        InvalidInput: a file that is cut off, or that others may read.
    """
    path = deployment.path("keys", "noise.key")
    if not path.exists():
        write_private(path, os.urandom(SECRET_BYTES))
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise InvalidInput.found(
            str(path), f"{len(secret)} bytes", f"{SECRET_BYTES}, the server's secret"
        )
    if os.name == "posix" and (mode := path.stat().st_mode) & 0o077:
        hint = (
            "Whoever knows it can tell the noise and who was drawn. Remove it for runs to "
            "come; copy it to no client."
        )
        raise InvalidInput.found(
            str(path),
            f"a file of mode {mode & 0o777:04o}",
            "a file that its owner alone may read, 0600",
            hint,
        )
    return secret


def _resume_run(out: Path, display: Display) -> RunDirectory:
    """Continues the run. A server that is just ending may hold the folder for a moment."""
    end = time.monotonic() + MOMENT
    while True:
        try:
            return resume(out, display)
        except RunExists:
            if time.monotonic() > end:
                raise
            time.sleep(1)
