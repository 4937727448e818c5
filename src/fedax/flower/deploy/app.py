"""The ServerApp of a deployment: runs the experiment of a folder, or continues a run."""

import contextlib
import ctypes
import logging
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from http.client import UNAUTHORIZED
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from fedax.core import FedaxError, RunExists
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.results.store import RunDirectory, Status, fresh
from fedax.experiments.running.progress import Display
from fedax.experiments.running.runner import resume, run_experiment
from fedax.experiments.running.setup import set_up_jax
from fedax.flower.client.disk import load_secret
from fedax.flower.deploy.hub import settings_of
from fedax.flower.deploy.keys import read_public_key
from fedax.flower.server import Flower
from fedax.flower.server.engine import use_engine
from fedax.flower.server.roster import ClientsMissing
from fedax.utils.files import write
from fedax.utils.lock import held

LOG = logging.getLogger("fedax")
OPTIONS = "clients", "deadline", "minimum", "patience", "most_examples", "secure"
"""Settings of a run that are arguments of `Flower`; 0 stands for the default."""


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
    folder = Path(config["folder"])
    # rounds, and who was left out or refused; nothing that others log. What `flwr log` shows is
    # lost with the server's process, the file stays
    LOG.setLevel(logging.INFO)
    for handler in (logging.StreamHandler(), logging.FileHandler(folder / "server.log")):
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        LOG.addHandler(handler)
    LOG.propagate = False
    run_on(grid, config, lambda: owners_of(folder, grid))


class Logged(Display):
    """Display in the log, with a line for every observation."""

    every = 0.0

    def _print(self, text: str, style: str = "") -> None:
        LOG.info(text.strip())


def run_on(
    grid: Any,
    config: Mapping[str, Any],
    registered: Callable[[], Mapping[int, int]] | None = None,
) -> None:
    """Runs, or continues, the experiment on the clients of a grid; see `serve`.

    A run that the server's end interrupts stays marked as running, and the hub submits it again.
    """
    folder = Path(config["folder"])
    is_new = not config["name"]
    out = Path(config["out"] or fresh(folder / "runs", "run"))
    if is_new and (out / "summary.json").exists():
        raise RunExists(f"{out} has a run already, which {settings_of(out)} continues.")
    # the path is no name: clients keep their states after the folder is removed, and would use them
    # in a new run of the same path
    config = {**config, "out": str(out), "name": config["name"] or uuid.uuid4().hex}
    write(settings_of(out), tomli_w.dumps(config))
    secret = load_secret(folder / "keys" / "noise.key")
    options = {name: config[name] for name in OPTIONS if config[name]}
    engine = Flower(grid, run=config["name"], secret=secret, registered=registered, **options)
    display = Logged()
    LOG.info("%s %s", out, "begins" if is_new else "goes on")
    try:
        with use_engine(engine):
            if is_new:
                experiment = Experiment.read(folder / "experiment.toml", ['engine="flower"'])
                directory = run_experiment(experiment, out, display)
            else:
                mark_run(out, "running", "")
                # the folder is the server's own, and its code was signed with the app
                directory = resume(out, display, trust=True)
    except Exception as error:
        reason = str(error) or type(error).__name__
        LOG.error("%s ended: %s", out, reason)
        mark_run(out, _status_after(error, is_new), reason)
        raise
    print(directory.line())


def _status_after(error: Exception, is_new: bool) -> Status:
    """Returns the status of a run that an error has ended."""
    # the server is gone, or clients are not back yet after a reboot
    if isinstance(error, httpx.TransportError) or (
        isinstance(error, ClientsMissing) and not is_new
    ):
        return "running"
    # Flower refuses all requests of a run that was stopped
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == UNAUTHORIZED:
        return "interrupted"
    return "failed"


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
