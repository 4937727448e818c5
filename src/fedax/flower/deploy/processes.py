"""The processes of a deployment on this machine, and Flower's commands about its server."""

import contextlib
import ctypes
import errno
import functools
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import tomli_w

from fedax.core import FedaxError
from fedax.errors import printable, short
from fedax.flower.deploy.settings import FILE, Deployment, quote
from fedax.flower.protocol.quiet import QUIET
from fedax.utils.files import write, writing

CONNECTION = "fedax"
"""The name of the server in Flower's configuration."""
TRUSTED = "trusted.yaml"
"""The public key of who has signed the app; a client's node runs no other app."""
LOOKS = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
"""Seconds between two looks for the next app to start, an option of Flower whose default is 1."""
LINES = 200
"""The last lines of a log that are searched for a reason."""
PATIENCE = 90.0
"""Seconds for a process to come up."""
HANDSHAKE = 5.0
"""Seconds for a connection to the server."""
COPY = 5.0
"""Seconds for the last lines of a process to reach its log."""
LOOPBACKS = "127.0.0.1", "localhost", "::1"
"""Hosts that are reached from this machine alone."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Codes of a terminal's colours, which Flower writes into files too."""


def environment(deployment: Deployment, home: str = "") -> dict[str, str]:
    """Returns the environment of Flower's processes: quiet, a separate home, the commands of this
    Python.

    Args:
        deployment: the deployment.
        home: of a client, below `flower`. Processes that share one would install the app at the
            same time, and one of them could import what another has copied in part.
    """
    commands = str(Path(sys.executable).parent)
    flower_home = {"FLWR_HOME": str(deployment.path("flower", home))}
    return (
        LOOKS
        | os.environ
        | QUIET
        | flower_home
        | {"PATH": commands + os.pathsep + os.environ.get("PATH", ""), "PYTHONUNBUFFERED": "1"}
    )


def configure(deployment: Deployment) -> None:
    """Writes Flower's own configuration, by which `flwr` commands find the server."""
    connection = {
        "address": deployment.address,
        "root-certificates": str(deployment.path("keys", "ca.crt")),
    }
    path = deployment.path("flower", "config.toml")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}}))


def host_of(deployment: Deployment) -> str:
    """Returns the address that the server binds: a loopback's own, otherwise that of all of this
    machine's addresses of the host's kind. Flower takes it without brackets.
    """
    if deployment.host in LOOPBACKS:
        return deployment.host
    return "::" if ":" in deployment.host else "0.0.0.0"


def superlink_command(deployment: Deployment) -> list[str]:
    """Returns the command of the server."""
    keys = deployment.path("keys")
    return [
        *(
            "flower-superlink",
            "--host",
            host_of(deployment),
            "--port",
            str(deployment.port),
            "--enable-supernode-auth",
        ),
        *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")),
        *("--ssl-keyfile", str(keys / "server.key"), "--disable-runtime-dependency-installation"),
    ]


def supernode_command(deployment: Deployment, partition: int, port: int, worker: Path) -> list[str]:
    """Returns the command of a client's node.

    Args:
        deployment: the client's copy of the folder.
        partition: the client's number.
        port: of the loopback, for the node and its ClientApp.
        worker: the socket of the client's worker.
    """
    return [
        *("flower-supernode", "--superlink", deployment.address),
        *("--root-certificates", str(deployment.path("keys", "ca.crt"))),
        *("--auth-supernode-private-key", str(deployment.path("keys", f"client-{partition}"))),
        *("--trusted-entities", str(deployment.path("keys", TRUSTED))),
        *("--host", "127.0.0.1", "--port", str(port), "--node-config", f"worker={quote(worker)}"),
    ]


def free_port() -> int:
    """Returns a free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


_WITH_PARENT = (
    # PR_SET_PDEATHSIG
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
    # unless it has ended already
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)


def end_with_parent() -> None:
    """Asks the system to end this process when its parent ends, however that ends; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def tie_to_parent(command: list[str]) -> list[str]:
    """Extends a command such that the system asks it to end when its parent ends, however that
    ends; Linux only.

    A function between fork and exec would do the same, but JAX has threads, which do not stand a
    fork.
    """
    return (
        [sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid()), *command]
        if sys.platform == "linux"
        else command
    )


@contextlib.contextmanager
def process(
    command: list[str], log: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process with its output in a file; it ends with all its children when the block
    ends.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.open("ab").close()  # raises here where the folder cannot be written
    child = subprocess.Popen(
        tie_to_parent(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=env,
        start_new_session=True,
    )
    copier = threading.Thread(target=_copy_output, args=(child.stdout, log), daemon=True)
    copier.start()
    try:
        yield child
    finally:
        end(child)
        copier.join(COPY)


def _copy_output(output: IO[bytes], log: Path) -> None:
    with output:
        for line in output:
            _append_text(log, line.decode("utf-8", "replace"))


def _append_text(log: Path, text: str) -> None:
    # what writes a log goes on when the disk is full
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="replace") as file:
        file.write(COLOURS.sub("", text))


def run_log(deployment: Deployment, number: int) -> Path:
    """Returns the file with the output of a run."""
    return deployment.path("logs", f"run-{number}.log")


def keep_output(log: Path) -> None:
    """Writes what this process prints into a file too."""

    def write(original: Callable[[str], int], text: str) -> int:
        _append_text(log, text)
        return original(text)

    for stream in (sys.stdout, sys.stderr):
        # Flower's logger holds the streams themselves, so they cannot be replaced
        stream.write = functools.partial(write, stream.write)


def ask_to_end(child: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """Sends a signal to a process and its children, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def end(child: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """Ends a process and its children: they are asked to, and killed if they do not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        ask_to_end(child, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)


def wait_until(
    is_ready: Callable[[], bool], what: str, child: subprocess.Popen[bytes], log: Path
) -> None:
    """Waits for something to be there.

    Raises:
        FedaxError: it does not come in time, or its process has ended.
    """
    deadline = time.monotonic() + PATIENCE
    while not is_ready():
        has_ended = child.poll() is not None and (child.stdout is None or child.stdout.closed)
        if has_ended or time.monotonic() > deadline:
            reason = "has ended" if has_ended else f"is not there after {PATIENCE:g} seconds"
            raise FedaxError(f"{what} {reason}: {last_line(log)}.")
        time.sleep(0.2)


REASONS = {
    "certificate has expired": "",
    "certificate verify failed": "",
    "Address already in use": "",
    "Connection refused": "",
    "not registered": "",
    "Failed to activate SuperNode": "The server does not know the key of this {client}. That is "
    "harmless right after a restart of the server. If it stays so, copy keys/{client}.pub to the "
    "server's folder and restart the server",
    "SuperNode terminated gracefully": "The server was started again, and takes it back",
}
"""Words in the logs of Flower's programs that say why one of them has ended, before the words with
which it ends, and a hint, in which `{client}` stands for the name of the log."""


def last_line(log: Path) -> str:
    """Returns the line of a log that says why its program has ended, or else its last line."""
    text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    lines = text.strip().splitlines()[-LINES:]
    if not lines:
        return f"its log {log} is empty"
    matches = (
        (line, hint)
        for reason, hint in REASONS.items()
        for line in reversed(lines)
        if reason in line
    )
    line, hint = next(matches, (None, ""))
    message = (
        f"its log {log} {'ends with' if line is None else 'says'} "
        f"{printable((line or lines[-1]).strip())!r}"
    )
    return f"{message}. {hint.format(client=log.stem)}" if hint else message


def check_address(deployment: Deployment) -> None:
    """Refuses an address at which another program listens.

    Raises:
        FedaxError: it is in use, or not one of this machine.
    """
    try:
        candidates = socket.getaddrinfo(
            host_of(deployment), deployment.port, type=socket.SOCK_STREAM
        )
        family, kind, protocol, _, address = candidates[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # as the server, beside which IPv4 stays free
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            # the server says itself what is wrong with a host that cannot be bound here, such as
            # one behind a proxy
            return
        hint = (
            "Stop the program that listens there, or choose another port in "
            f"{deployment.path(FILE)}"
        )
        raise FedaxError(f"{deployment.address} is in use by another program. {hint}.") from error


def connection_failure(deployment: Deployment) -> str | None:
    """Returns why no TLS connection to the server can be made, or None if one can.

    It sends no request, because a proxy may keep Flower's control from clients.
    """
    host = deployment.host
    try:
        context = ssl.create_default_context(cadata=deployment.path("keys", "ca.crt").read_text())
        with socket.create_connection((host, deployment.port), HANDSHAKE) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except (OSError, ValueError) as error:
        # of TLS and of files, and of names that cannot be looked up
        return _describe_failure(deployment, error)
    return None


def _describe_failure(deployment: Deployment, error: Exception) -> str:
    """Returns an error of a connection in words."""
    text = short(printable(str(error) or type(error).__name__))
    if "certificate" in text.lower():
        return f"its certificate does not fit {deployment.path('keys', 'ca.crt')} ({text})"
    if isinstance(error, ssl.SSLError) or "ssl" in text.lower():
        return f"the program that listens there does not speak TLS ({text})"
    return re.sub(r"^\[Errno -?\d+\] ", "", text)


def flwr(deployment: Deployment, *arguments: str) -> dict[str, Any]:
    """Returns the answer of one of Flower's commands about the server.

    Raises:
        FedaxError: the server cannot be reached, or refuses.
    """
    if (
        failure := connection_failure(deployment)
    ) is not None:  # at once, where the command tries for long
        raise FedaxError(failure)
    options: Any = {
        "env": environment(deployment),
        "stdin": subprocess.DEVNULL,
        "timeout": PATIENCE,
    }
    output = ""
    try:
        completed = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        output = completed.stdout + completed.stderr
        answer = json.loads(completed.stdout[completed.stdout.index("{") :])
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise FedaxError(
            f"`flwr {arguments[0]}` gave no answer: {short(printable(output or str(error)))}"
        ) from error
    if not answer.get("success"):
        raise FedaxError(short(printable(str(answer.get("error-message", answer)))))
    return answer


def register(deployment: Deployment, k: int) -> int:
    """Lets the server accept a client, by its public key. Returns the number of its node."""
    key = str(deployment.path("keys", f"client-{k}.pub"))
    return int(
        flwr(deployment, "supernode", "register", key, CONNECTION, "--name", f"client-{k}")[
            "node-id"
        ]
    )


def nodes(deployment: Deployment) -> dict[int, str]:
    """Returns the state of each client's node that the server knows, by the node's number."""
    entries = flwr(deployment, "supernode", "list", CONNECTION)["nodes"]
    return {int(node["node-id"]): str(node["status"]) for node in entries}


class Run(NamedTuple):
    """A run of Flower.

    Attributes:
        status: such as `running` or `finished:completed`.
        details: Flower's explanation of it.
    """

    status: str
    details: str


def runs(deployment: Deployment) -> dict[int, Run]:
    """Returns the runs that the server knows by number, the first one first."""
    entries = sorted(
        flwr(deployment, "list", CONNECTION)["runs"], key=lambda run: run["pending-at"]
    )
    return {
        int(run["run-id"]): Run(run["status"], run["status-details"].removeprefix("N/A"))
        for run in entries
    }
