"""Folders of a deployment: the server's, which is a Flower app, and those of its clients."""

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import tomli_w

from fedax.core import Algorithm, FedaxError, InvalidInput, RunExists
from fedax.engine.driver.grid import Grid
from fedax.engine.driver.options import RunOptions
from fedax.engine.round.client import Setup
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.config.user_code import copy_code
from fedax.experiments.results.store import RunDirectory
from fedax.flower.deploy.hub import APP, find_crashed
from fedax.flower.deploy.keys import sign, write_certificate, write_key_pair
from fedax.flower.deploy.worker import SITE
from fedax.flower.protocol.quiet import QUIET
from fedax.flower.server.engine import Flower, use_engine
from fedax.flower.server.roster import Sizes
from fedax.utils.files import write

SERVER_FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "fedax_app/__init__.py": "init.py.txt",
    "fedax_app/server.py": "server.py.txt",
    "fedax_app/client.py": "client.py.txt",
    "flower/config.toml": "config.toml.txt",
    "README.md": "README.md",
    "compose.yaml": "compose.yaml",
    "server.sh": "server.sh",
    "fedax-server.service": "fedax-server.service",
    "fedax-client.service": "fedax-client.service",
}
"""The files of a server's folder, and those of this package from which they are made."""
PROGRAMS = Path(sys.executable).parent
LOOPBACKS = "127.0.0.1", "localhost", "::1"
CLIENTS = 5
"""The clients of a deployment whose task does not say how many there are."""


class Rehearsal(Flower):
    """The engine of a deployment without a server: it makes the programs of runs, and asks no
    client. All have the sizes that the experiment's task has in the mean.
    """

    def meet(self, setup: Setup) -> list[Sizes]:
        parts = setup.task.data.parts
        means = [
            parts[split].total // parts[split].clients if split in parts else 0
            for split in Sizes._fields
        ]
        return [Sizes(*means)] * (self.clients or setup.population.clients)


def check_experiment(
    path: Path, changes: Sequence[str], clients: int | None, secure: float
) -> tuple[Experiment, int]:
    """Reads an experiment that is to be deployed, and makes the programs of its runs as the server
    will.

    Args:
        path: of the file.
        changes: of its values, as `--set` takes them.
        clients: how many there are; None for as many as the task has, or `CLIENTS` if it has one.
        secure: see `Flower`; 0 for uploads in the open.

    Returns:
        The experiment, and the number of clients.

    Raises:
        InvalidInput: something that deployed runs cannot do.
    """
    experiment = Experiment.read(path, [*changes, 'engine="flower"'])
    for name in ("simulation", "audit"):
        if getattr(experiment, name) is not None:
            raise InvalidInput.found(name, f"a table [{name}]", "none, in a deployment")
    rehearsed = experiment.model_copy(update={"engine": "simulation"})
    task_clients = rehearsed.plan(clients=clients or CLIENTS).task.train.clients
    if clients is not None and task_clients not in (1, clients):
        hint = (
            f"Its task has {task_clients}; --clients {task_clients} fits. "
            "A task of one client fits any number."
        )
        raise InvalidInput.of("--clients", clients, "as many as the experiment's task has", hint)
    clients = clients or (CLIENTS if task_clients == 1 else task_clients)
    with use_engine(Rehearsal(None, clients=clients, secure=secure)):
        plan = experiment.plan()
        for label, algorithm in plan.algorithms.items():
            has_models = type(algorithm).personal is not Algorithm.personal
            personal = experiment.keep_models == "personal" and has_models
            rest = {"stop": [], "keep_best": None, "personal": personal}
            options = RunOptions.of(plan.arguments_of(label) | rest)
            # refuses what no deployed run can serve
            Grid([algorithm], plan.task, experiment.seeds[:1], options)
    return experiment, clients


def make(
    path: Path,
    folder: Path,
    changes: Sequence[str],
    clients: int | None,
    host: str,
    port: int,
    secure: float,
) -> int:
    """Writes the folder of a server, and returns the number of clients.

    Args:
        path: of the experiment file.
        folder: absolute, new or empty.
        changes: of the experiment's values, as `--set` takes them.
        clients: how many there are; by default as many as the experiment's task has, or 5 if it has
            one.
        host: the server's name or address, as clients reach it.
        port: the server's.
        secure: the largest size of an entry of a masked upload; 0 for uploads in the open.

    Raises:
        RunExists: the folder is not empty.
        InvalidInput: an experiment that cannot be deployed.
        FedaxError: Flower refuses the app.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RunExists(f"{folder} is not empty; choose another folder.")
    experiment, clients = check_experiment(path, changes, clients, secure)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    bound = host if host in LOOPBACKS else "::" if ":" in host else "0.0.0.0"
    values = {
        "app": APP,
        "folder": folder,
        "address": address,
        "bound": bound,
        "port": port,
        "clients": clients,
        "secure": secure,
        "bin": PROGRAMS,
        "user": getpass.getuser(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    document = copy_code(experiment.model_copy(update={"engine": "simulation"}), folder)
    write(folder / "experiment.toml", tomli_w.dumps(document))
    for name, template in SERVER_FILES.items():
        write(folder / name, _fill(template, values))
    write_certificate(folder / "keys", host)
    settings = {"address": address, "clients": clients, "secure": secure}
    write(folder / "keys" / SITE, tomli_w.dumps(settings))
    bundle = build_app(folder)
    write(folder / "app.fab", bundle)
    sign(folder / "keys", bundle)
    return clients


def pack(folder: Path, partition: int, data: str) -> Path:
    """Writes what a client needs into `sites/K` of a server's folder, with a new key pair, whose
    public half goes to the server's keys. Returns the client's folder.

    Args:
        folder: of the server.
        partition: the client's number.
        data: a file of Python with the client's examples, by its path on the client's machine, or
            its name in the client's folder; an empty one for its part of the task.

    Raises:
        InvalidInput: no such client, or a path from the working directory.
        RunExists: the client has a key pair already.
    """
    keys = folder / "keys"
    settings = tomllib.loads((keys / SITE).read_text())
    if partition not in range(settings["clients"]):
        allowed = f"whole numbers from 0 to {settings['clients'] - 1}"
        raise InvalidInput.of("SITE", partition, allowed)
    path = Path(data)
    if path.parent.name and not path.is_absolute():
        raise InvalidInput.of("--data", data, "an absolute path, or a name in the client's folder")
    public = keys / f"client-{partition}.pub"
    if public.exists():
        raise RunExists(f"{public} exists. Remove it to make a new key pair for this client.")
    site = folder / "sites" / str(partition)
    site.mkdir(parents=True, exist_ok=True)
    for path in (
        folder / "experiment.toml",
        folder / "fedax-client.service",
        *folder.glob("*.py"),
        keys / "ca.crt",
        keys / "trusted.yaml",
    ):
        shutil.copy(path, site)
    address = settings.pop("address")
    write(site / SITE, tomli_w.dumps({"partition": partition, "data": data, **settings}))
    script = _fill("client.sh", {"address": address, "port": 9100 + partition})
    write(site / "client.sh", script)
    write_key_pair(site / "client.key", public)
    return site


def status_lines(folder: Path) -> list[str]:
    """Returns the runs of a server's folder with their status."""
    lines = []
    crashed = find_crashed(folder)
    for summary in sorted(folder.glob("runs/*/summary.json")):
        path = summary.parent
        directory = RunDirectory.load(path)
        rounds = [int(p.name.removeprefix("round-")) for p in path.glob("checkpoints/*/round-*")]
        checkpoint = f", newest checkpoint of round {max(rounds)}" if rounds else ""
        done = f"{len(directory.runs)} of {len(directory.planned)} runs done"
        reason = f" ({directory.reason})" if directory.reason else ""
        status = "ended by a crash" if path in crashed else directory.status
        lines.append(f"{path}: {status}{reason}, {done}{checkpoint}")
    return lines


def _fill(template: str, values: dict[str, object]) -> str:
    text = resources.files("fedax.flower.deploy").joinpath("files", template).read_text("utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def build_app(folder: Path) -> bytes:
    """Returns the bundle of the app in a folder, by `flwr build`.

    Raises:
        FedaxError: Flower refuses the app.
    """
    with tempfile.TemporaryDirectory() as place:
        # the command refuses names of folders that are no names of apps, and compiles the files
        app = Path(place) / "app"
        shutil.copytree(folder / "fedax_app", app / "fedax_app")
        shutil.copy(folder / "pyproject.toml", app)
        completed = subprocess.run(
            [PROGRAMS / "flwr", "build", "--app", "app"],
            cwd=place,
            env=os.environ | QUIET | {"FLWR_HOME": place},
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            raise FedaxError(f"`flwr build` failed: {completed.stdout}{completed.stderr}")
        (bundle,) = Path(place).glob("*.fab")
        return bundle.read_bytes()
