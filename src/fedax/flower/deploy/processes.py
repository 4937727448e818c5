"""The processes of a deployment on this machine, as Flower's own commands, and its control."""

import contextlib
import ctypes
import errno
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from fedax.core import FedaxError
from fedax.errors import printable, short
from fedax.flower.deploy.settings import FILE, Deployment, quote
from fedax.flower.protocol.quiet import QUIET
from fedax.utils.files import write, writing

CONNECTION = "fedax"
"""The name of the server in Flower's configuration."""
DESCRIPTIONS = 1 << 20
"""The most bytes of an upload beside its arrays."""
LINES = 200
"""The last lines of a log that are searched for a reason."""
PATIENCE = 90.0
"""Seconds for a process to come up."""
HANDSHAKE = 5.0
"""Seconds for a connection to the server."""


def environment(deployment: Deployment) -> dict[str, str]:
    """Returns the environment of Flower's processes: quiet, a separate home, the commands of this
    Python.
    """
    commands = str(Path(sys.executable).parent)
    own = {"FLWR_HOME": str(deployment.path("flower"))}
    return (
        os.environ
        | QUIET
        | own
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
    """Returns the address that the server binds: its own on the loopback, otherwise all of this
    machine.
    """
    return deployment.host if deployment.host in ("127.0.0.1", "localhost") else "0.0.0.0"


def superlink(deployment: Deployment) -> list[str]:
    """Returns the command of the server."""
    keys = deployment.path("keys")
    return [
        *(
            sys.executable,
            "-P",
            str(Path(__file__).with_name("link.py")),
            str(deployment.largest + DESCRIPTIONS),
        ),
        *("--host", host_of(deployment), "--port", str(deployment.port), "--enable-supernode-auth"),
        *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")),
        *("--ssl-keyfile", str(keys / "server.key"), "--disable-runtime-dependency-installation"),
    ]


def supernode(
    deployment: Deployment, partition: int, port: int, data: Path | None = None
) -> list[str]:
    """Returns the command of a client's node, which waits for a worker at a port of the
    loopback.
    """
    node = f"partition-id={partition} deployment={quote(deployment.folder)}"
    node += "" if data is None else f" data={quote(data)}"
    return [
        *(
            sys.executable,
            "-P",
            str(Path(__file__).with_name("node.py")),
            "--superlink",
            deployment.address,
        ),
        *("--isolation", "process"),
        *("--root-certificates", str(deployment.path("keys", "ca.crt"))),
        *("--auth-supernode-private-key", str(deployment.path("keys", f"client-{partition}"))),
        *("--host", "127.0.0.1", "--port", str(port), "--node-config", node),
    ]


def free_port() -> int:
    """Returns a free port of the loopback."""
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        return there.getsockname()[1]


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
    with log.open("ab") as stream:
        started = subprocess.Popen(
            tie_to_parent(command),
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )
        try:
            yield started
        finally:
            end(started)


def ask_to_end(started: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """Sends a signal to a process and its children, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, number)


def end(started: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """Ends a process and its children: they are asked to, and killed if they do not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        ask_to_end(started, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(patience)


def wait_until(
    there: Callable[[], bool], what: str, started: subprocess.Popen[bytes], log: Path
) -> None:
    """Waits for something to be there.

    Raises:
        FedaxError: it does not come in time, or its process has ended.
    """
    finish = time.monotonic() + PATIENCE
    while not there():
        gone = started.poll() is not None
        if gone or time.monotonic() > finish:
            reason = "has ended" if gone else f"is not there after {PATIENCE:g} seconds"
            raise FedaxError(f"{what} {reason}: {last_line(log)}.")
        time.sleep(0.2)


REASONS = {
    "certificate has expired": "",
    "certificate verify failed": "",
    "Address already in use": "",
    "Connection refused": "",
    "not registered": "",
    "Failed to activate SuperNode": "The server does not know the key: its folder needs this "
    "client's client-K.pub",
    "SuperNode terminated gracefully": "The server was started again, and takes it back",
}
"""Words in the logs of Flower's programs that say why one of them has ended, before the words with
which it ends, and a hint."""


COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Codes of a terminal's colours, which Flower writes into files too."""


def last_line(log: Path) -> str:
    """Returns the line of a log that says why its program has ended, or else its last line."""
    text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    lines = COLOURS.sub("", text).strip().splitlines()[-LINES:]
    if not lines:
        return f"its log {log} is empty"
    told = (
        (line, hint)
        for reason, hint in REASONS.items()
        for line in reversed(lines)
        if reason in line
    )
    line, hint = next(told, (None, ""))
    said = (
        f"its log {log} {'ends with' if line is None else 'says'} "
        f"{printable((line or lines[-1]).strip())!r}"
    )
    return f"{said}. {hint}" if hint else said


def check_address(deployment: Deployment) -> None:
    """Refuses an address at which another program listens.

    Raises:
        FedaxError: it is in use, or not one of this machine.
    """
    try:
        found = socket.getaddrinfo(host_of(deployment), deployment.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
        return _reason(deployment, error)
    return None


def _reason(deployment: Deployment, error: Exception) -> str:
    """Returns an error of a connection in words."""
    text = short(printable(str(error) or type(error).__name__))
    if "certificate" in text.lower():
        return f"its certificate does not fit {deployment.path('keys', 'ca.crt')} ({text})"
    if isinstance(error, ssl.SSLError) or "ssl" in text.lower():
        return f"the program that listens there does not speak TLS ({text})"
    return re.sub(r"^\[Errno -?\d+\] ", "", text)


class Control:
    """The control of a running server."""

    def __init__(self, deployment: Deployment) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self.deployment = deployment
        certificate = deployment.path("keys", "ca.crt").read_bytes()
        interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        self.client = ControlHttpClient.from_server_address(
            deployment.address, False, certificate, interceptors
        )

    def failure(self) -> str | None:
        """Returns why the server does not answer, or None if it does."""
        try:
            self.nodes()
        except Exception as error:  # of httpx, or of reading what another program has answered
            return _reason(self.deployment, error)
        return None

    def up(self) -> bool:
        """Returns whether the server answers."""
        return self.failure() is None

    def register(self, k: int) -> bool:
        """Lets the server accept a client, by its public key; False if it knows the key already."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        known = {node.public_key for node in self.nodes()}
        if (content := self.public_key(k)) in known:
            return False
        self.client.RegisterNode(RegisterNodeRequest(public_key=content, name=f"client-{k}"))
        return True

    def public_key(self, k: int) -> bytes:
        """Returns the public key of a client, as the server knows it."""
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        key: Any = load_ssh_public_key(self.deployment.path("keys", f"client-{k}.pub").read_bytes())
        return public_key_to_bytes(key)

    def nodes(self) -> list[Any]:
        """Returns the clients' nodes that the server knows."""
        from flwr.proto.control_pb2 import ListNodesRequest

        return list(self.client.ListNodes(ListNodesRequest()).nodes_info)

    def runs(self) -> dict[int, Any]:
        """Returns the runs by number."""
        from flwr.proto.control_pb2 import ListRunsRequest

        return dict(self.client.ListRuns(ListRunsRequest()).run_dict)

    def close(self) -> None:
        """Ends the connection."""
        self.client.close()
