"""A deployment's programs: the server, a client, a run, and all of them on this machine."""

import contextlib
import dataclasses
import datetime
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedax.core import FedaxError, InvalidInput, RunExists
from fedax.experiments.config.user_code import copy_code
from fedax.flower.deploy.app import write_app
from fedax.flower.deploy.bundle import APP, build_app, serve_app
from fedax.flower.deploy.check import check_experiment
from fedax.flower.deploy.keys import (
    certificate_ends,
    check_certificates,
    write_certificates,
    write_client_key,
)
from fedax.flower.deploy.processes import (
    CONNECTION,
    TRUSTED,
    Run,
    ask_to_end,
    check_address,
    configure,
    connection_failure,
    environment,
    flwr,
    free_port,
    last_line,
    nodes,
    process,
    register,
    run_log,
    runs,
    superlink_command,
    supernode_command,
    wait_until,
)
from fedax.flower.deploy.settings import Deployment, quote
from fedax.flower.deploy.worker import device_for, open_socket, work
from fedax.utils.files import read_text, write, writing

Say = Callable[[str], None]
AGAIN = 5.0
"""Seconds until a client's node that has ended is started again, and between two questions for a
run's state."""
LOST = 5.0
"""Seconds after a first request without an answer until a server counts as lost."""
OVER = "finished:"
"""The prefix of the state of a finished run of Flower."""
NODES = "nodes.json"
"""The clients' nodes of the server, by which `fedax deploy status` names them."""
PARENT = "FEDAX_PARENT"
"""The variable with the number of the process that a client of a trial ends with."""
AT_A_TIME = 4
"""Clients that are registered at a time."""


def make(
    folder: Path,
    path: Path,
    changes: Sequence[str] = (),
    clients: int | None = None,
    **settings: Any,
) -> Deployment:
    """Writes the folder of a new deployment: settings, experiment, app, certificates, keys.

    Args:
        folder: absolute, new or empty.
        path: of the experiment file.
        changes: of its values, as `--set` takes them.
        clients: how many there are; by default as many as the experiment's task has, or 5 if it has
            one.
        settings: of `Deployment`.

    Raises:
        RunExists: the folder is not empty.
        InvalidInput: settings out of range, an experiment that cannot be deployed.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunExists(f"{folder} is not empty; choose another folder.")
    options: dict[str, Any] = settings if clients is None else settings | {"clients": clients}
    deployment = Deployment(folder, **options)
    experiment, clients = check_experiment(path, changes, deployment, clients)
    deployment = dataclasses.replace(deployment, clients=clients)
    with _removed_on_failure(folder):
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            document = copy_code(experiment.model_copy(update={"engine": "simulation"}), folder)
            write(folder / "experiment.toml", tomli_w.dumps(document))
        deployment.save()
        write_app(folder / "app", folder)
        write_certificates(folder / "keys", deployment.host)
        for k in range(deployment.clients):
            write_client_key(folder / "keys", k)
        configure(deployment)
        build_app(deployment)
    return deployment


@contextlib.contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    """Empties a new or empty folder if the block fails, so that `make` can be repeated."""
    existed = folder.exists()
    try:
        yield
    except BaseException:
        # an error here must not hide the one before
        shutil.rmtree(folder, ignore_errors=True)
        if existed:
            folder.mkdir(exist_ok=True)
        raise


def renew(deployment: Deployment, client: int | None = None) -> list[str]:
    """Makes new certificates and the signed app of this version, or a new key pair of a client.

    Args:
        deployment: the server's copy of the folder.
        client: whose keys are made. None for the certificates and the signature.

    Returns:
        The files that clients need.

    Raises:
        InvalidInput: there is no such client.
    """
    keys = deployment.path("keys")
    if client is None:
        # first what can fail: new certificates shut out all clients until they have them
        write_app(deployment.path("app"), deployment.folder)
        build_app(deployment)
        write_certificates(keys, deployment.host)
        return ["keys/ca.crt", f"keys/{TRUSTED}"]
    if client not in range(deployment.clients):
        raise InvalidInput.of(
            "--client", client, f"whole numbers from 0 to {deployment.clients - 1}"
        )
    write_client_key(keys, client)
    return [f"keys/client-{client}"]


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Lets a request to end (SIGTERM) close what is open, as an interruption does."""

    def leave(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is being closed is closed once
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handler = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@contextlib.contextmanager
def run_server(deployment: Deployment, say: Say) -> Iterator[Callable[[], bool]]:
    """Runs the server while the block runs; it accepts the clients whose public keys are in the
    folder.

    Yields a function that returns whether the server still runs.
    """
    log = deployment.path("logs", "server.log")
    check_certificates(deployment.path("keys"), ("ca.crt", "server.crt"))
    check_address(deployment)
    configure(deployment)
    with (
        exit_on_signals(),
        serve_app(deployment) as hub,
        process(superlink_command(deployment), log, environment(deployment) | hub) as superlink,
    ):
        wait_until(lambda: connection_failure(deployment) is None, "the server", superlink, log)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            node_ids = list(pool.map(lambda k: register(deployment, k), range(deployment.clients)))
        path = deployment.path("flower", NODES)
        with writing(path):
            write(path, json.dumps(node_ids))
        say(f"Server at {deployment.address}, {deployment.clients} clients registered. Log: {log}")
        yield lambda: superlink.poll() is None


def serve_clients(deployment: Deployment, say: Say) -> None:
    """Runs the server until it is interrupted."""
    with run_server(deployment, say) as is_running, contextlib.suppress(KeyboardInterrupt):
        while is_running():
            time.sleep(1)
        raise FedaxError(f"the server has ended; see {deployment.path('logs', 'server.log')}.")


def run_client(deployment: Deployment, partition: int, data: Path | None, say: Say) -> None:
    """Runs a client until it is interrupted, or the trial ends that started it.

    A node that ends is started again.
    """
    parent = os.environ.get(PARENT)
    if partition not in range(deployment.clients):
        raise InvalidInput.of(
            "partition", partition, f"whole numbers from 0 to {deployment.clients - 1}"
        )
    check_certificates(deployment.path("keys"), ("ca.crt",))
    for name in (names := ("ca.crt", TRUSTED, f"client-{partition}")):
        if not (path := deployment.path("keys", name)).exists():
            hint = (
                f"Client {partition} needs {', '.join(names)} from the folder that "
                "`fedax deploy init` made."
            )
            raise InvalidInput.because(str(path), "no such file", hint)
    data = None if data is None else data.absolute()
    device = device_for(deployment, partition, data)
    log = deployment.path("logs", f"client-{partition}.log")
    say(
        f"Client {partition} of {deployment.address}, {device.task.train.total} examples. Log: "
        f"{log}"
    )
    with (
        exit_on_signals(),
        contextlib.suppress(KeyboardInterrupt),
        open_socket() as (listener, address),
    ):
        while parent in (None, str(os.getppid())):
            command = supernode_command(deployment, partition, free_port(), address)
            home = environment(deployment, f"client-{partition}")
            with process(command, log, home) as node:
                work(
                    device,
                    listener,
                    lambda node=node: node.poll() is None and parent in (None, str(os.getppid())),
                )
            # after a crash the server takes the node for one that is there, for up to a minute
            say(
                f"The node of client {partition} has ended: {last_line(log)}. It is started "
                f"again in {AGAIN:g} seconds."
            )
            time.sleep(AGAIN)


@contextlib.contextmanager
def run_all_processes(deployment: Deployment, say: Say) -> Iterator[None]:
    """Runs the server and all clients on this machine while the block runs."""
    with run_server(deployment, say), contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(client_process(deployment, k)) for k in range(deployment.clients)
        ]
        try:
            yield
            for k, client in enumerate(clients):
                if client.poll() is not None:
                    say(f"Client {k} has ended; see {deployment.path('logs', f'worker-{k}.log')}")
        finally:
            for client in clients:  # all at once, and then one after the other
                ask_to_end(client)


def client_process(deployment: Deployment, k: int) -> Any:
    """Starts a client as a process on this machine."""
    command = [
        sys.executable,
        "-m",
        "fedax",
        "deploy",
        "client",
        str(deployment.folder),
        str(k),
    ]
    environment = os.environ | {PARENT: str(os.getpid())}
    return process(command, deployment.path("logs", f"worker-{k}.log"), environment)


class ServerLost(FedaxError):
    """The server of a run has ended."""


class Result(NamedTuple):
    """The end of a run: its number at the server, whether it is complete, and Flower's words."""

    number: int
    complete: bool
    details: str


def submit(deployment: Deployment, out: Path, resume: bool) -> int:
    """Starts a run at the server that is there; its number.

    Raises:
        FedaxError: Flower does not take it.
    """
    config = (
        f"out={quote(out.absolute())} resume={str(resume).lower()} "
        f"deployment={quote(deployment.folder)}"
    )
    return int(flwr(deployment, "run", APP, CONNECTION, "--run-config", config)["run-id"])


def stop_runs(deployment: Deployment) -> list[int]:
    """Stops the runs that are not over. Returns their numbers at the server.

    Raises:
        FedaxError: the server cannot be reached.
    """
    active = [number for number, run in runs(deployment).items() if not run.status.startswith(OVER)]
    for number in active:
        flwr(deployment, "stop", str(number), CONNECTION)
    return active


def follow(deployment: Deployment, number: int, say: Say) -> Result:
    """Shows a run's own output until it is over.

    Raises:
        ServerLost: the server has ended, or one that does not know the run is in its place.
    """
    command = ["flwr", "log", str(number), CONNECTION, "--stream"]
    log = run_log(deployment, number)
    shown = 0
    # The server writes the log, also while nobody follows it. Flower's command ends with the run.
    with process(command, Path(os.devnull), environment(deployment)) as stream:
        while stream.poll() is None and not _is_lost(deployment):
            shown = _show_lines(log, shown, say)
            time.sleep(1)
    run = _find_run(deployment, number)
    while not run.status.startswith(OVER):  # the stream may end before the run
        time.sleep(AGAIN)
        run = _find_run(deployment, number)
    status = run.status.removeprefix(OVER)
    if status != "stopped":  # the last words of a stopped run are about requests that are refused
        _show_lines(log, shown, say)
    return Result(number, status == "completed", f"{status} {run.details}".strip())


def _show_lines(log: Path, begin: int, say: Say) -> int:
    """Shows the whole lines of a log from some letter on; returns the letter after them."""
    text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    end = text.rfind("\n") + 1
    for line in text[begin:end].splitlines():
        say(line)
    return end


def _is_lost(deployment: Deployment) -> bool:
    """Returns whether the server cannot be reached for `LOST` seconds.

    One failure is not yet a lost server.
    """
    end = time.monotonic() + LOST
    while connection_failure(deployment) is not None:
        if time.monotonic() >= end:
            return True
        time.sleep(0.5)
    return False


def _find_run(deployment: Deployment, number: int) -> Run:
    """Returns a run as the server knows it.

    Raises:
        ServerLost: see `follow`.
    """
    if _is_lost(deployment):
        raise ServerLost(f"the server at {deployment.address} has ended during run {number}.")
    if (run := runs(deployment).get(number)) is None:
        raise ServerLost(
            f"the server at {deployment.address} was started again and no longer knows "
            f"run {number}."
        )
    return run


def status_lines(deployment: Deployment) -> list[str]:
    """Returns the state of a deployment whose server answers: the days until which the certificates
    are valid, the clients with their nodes, the server's runs, and the newest run directory.
    """
    names = {node: f"client-{k}" for k, node in enumerate(_read_nodes(deployment))}
    states = sorted(nodes(deployment).items(), key=lambda item: names.get(item[0], ""))
    lines = [f"Server at {deployment.address}."]
    for file, end in certificate_ends(deployment.path("keys")).items():
        day = datetime.datetime.fromtimestamp(end, datetime.UTC)
        lines.append(f"keys/{file} is valid until {day:%Y-%m-%d}.")
    for node, state in states:
        lines.append(f"{names.get(node, 'unknown client')}: {state} (node {node})")
    for number, run in runs(deployment).items():
        lines.append(f"run {number}: {run.status} {run.details}".rstrip())
    summaries = deployment.path("runs").glob("*/summary.json")
    newest = max(summaries, key=lambda path: path.stat().st_mtime, default=None)
    if newest is not None:
        lines.append(f"newest results: {newest.parent}")
    return lines


def _read_nodes(deployment: Deployment) -> list[int]:
    """Returns the clients' nodes by the client's number; none before the first start of the
    server.
    """
    path = deployment.path("flower", NODES)
    return json.loads(read_text(path)) if path.exists() else []
