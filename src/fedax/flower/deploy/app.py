"""The ServerApp of a deployment: runs the experiment of a folder, or continues a run."""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from http.client import UNAUTHORIZED
from pathlib import Path
from typing import Any

import httpx
import tomli_w
from rich.console import Console

from fedax.core import FedaxError, InvalidInput
from fedax.engine.round.client import Setup
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory, Status, fresh
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from fedax.experiments.running.setup import set_up_jax
from fedax.flower.deploy.hub import RUN_FILE
from fedax.flower.deploy.keys import PRIVATE, read_public_key, store
from fedax.flower.server import Flower
from fedax.flower.server.engine import use_engine
from fedax.flower.server.roster import ClientsMissing
from fedax.utils.lock import held

SECRET_BYTES = 32


def serve(grid: Any, config: Mapping[str, Any]) -> None:
    """Runs, or continues, the experiment: the main function of the ServerApp.

    Args:
        grid: of Flower.
        config: of the run, see the folder's `pyproject.toml`.
    """
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: a server that is gone leaves no process that holds the run directory
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    set_up_jax(1)
    folder = Path(str(config["folder"]))
    # who was left out or refused; nothing that others log. What `flwr log` shows is lost with the
    # server's process, the file stays
    for handler in (logging.StreamHandler(), logging.FileHandler(folder / "server.log")):
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logging.getLogger("fedax").addHandler(handler)
    logging.getLogger("fedax").propagate = False
    run_on(grid, config, lambda: owners_of(folder, grid))


def run_on(
    grid: Any,
    config: Mapping[str, Any],
    registered: Callable[[], Mapping[int, int]] | None = None,
) -> None:
    """Runs, or continues, the experiment on the clients of a grid; see `serve`.

    A run that the server's end interrupts stays marked as running, and the hub submits it again.
    """
    folder, is_new = Path(str(config["folder"])), not config["name"]
    out = Path(str(config["out"] or fresh(folder / "runs", "run")))
    config = {**config, "out": str(out), "name": config["name"] or uuid.uuid4().hex}
    display = Display(Console(width=120))
    try:
        with use_engine(DeployedRun(grid, out, config, registered)):
            if is_new:
                experiment = Experiment.read(folder / "experiment.toml", ['engine="flower"'])
                directory = run_experiment(experiment, out, display)
            else:
                mark_run(out, "running", "")
                directory = resume(out, display)
    except httpx.TransportError:
        raise
    except ClientsMissing:
        if not is_new:
            mark_run(out, "running", "")
        raise
    except httpx.HTTPStatusError as error:
        # Flower refuses all requests of a run that was stopped
        is_stopped = error.response.status_code == UNAUTHORIZED
        mark_run(out, "interrupted" if is_stopped else "failed", str(error))
        raise
    except Exception as error:
        mark_run(out, "failed", str(error) or type(error).__name__)
        raise
    print(directory.line())


class DeployedRun(Flower):
    """The engine of one run directory, which keeps the run's configuration in `flower-run.toml`.

    It has the name under which clients keep their states. The path is no name: clients keep their
    states after the folder is removed, and would use them in a new run of the same path.

    Args:
        grid: of Flower.
        out: the run directory; it has to exist when the run begins.
        config: of the run.
        registered: see `Flower`.
    """

    def __init__(
        self,
        grid: Any,
        out: Path,
        config: Mapping[str, Any],
        registered: Callable[[], Mapping[int, int]] | None,
    ) -> None:
        super().__init__(
            grid,
            run=config["name"],
            clients=config["clients"],
            deadline=config["deadline"],
            minimum=config["minimum"],
            patience=config["patience"],
            most_examples=config["most-examples"] or None,
            secure=config["secure"] or None,
            secret=load_secret(Path(config["folder"]) / "keys" / "noise.key"),
            registered=registered,
        )
        self.out, self.config = out, config

    def prepared(self, setup: Setup) -> Setup:
        # the run directory exists by now, and no message has been sent yet
        store(self.out / RUN_FILE, tomli_w.dumps(self.config))
        return super().prepared(setup)


def mark_run(out: Path, status: Status, reason: str) -> None:
    """Marks a run directory as running, or as ended with the reason; the first reason is kept."""
    # an error here must not hide the one that ended the run
    with contextlib.suppress(FedaxError, OSError), held(out):
        directory = RunDirectory.load(out, repair=True)
        if "running" in (status, directory.status):
            directory.close(status, reason)


def owners_of(folder: Path, grid: Any) -> dict[int, int]:
    """Returns, by Flower's node, the client whose public key in the folder the node holds."""
    keys = {
        read_public_key(path): int(path.stem.removeprefix("client-"))
        for path in folder.glob("keys/client-*.pub")
    }
    return {
        node.node_id: keys[node.public_key] for node in grid.get_nodes() if node.public_key in keys
    }


def load_secret(path: Path) -> bytes:
    """Returns the server's secret, of the noise of privacy and of cohorts that it hides. A run that
    is continued has the same.

    Raises:
        InvalidInput: a file that is cut off, or that others may read.
    """
    if not path.exists():
        store(path, os.urandom(SECRET_BYTES), PRIVATE)
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise InvalidInput.found(str(path), f"{len(secret)} bytes", f"{SECRET_BYTES} bytes")
    if os.name == "posix" and (mode := path.stat().st_mode) & 0o077:
        allowed = "a file that its owner alone may read, 0600"
        raise InvalidInput.found(str(path), f"a file of mode {mode & 0o777:04o}", allowed)
    return secret
