"""The ClientApp's side of a client's worker: hands a message on over a Unix socket.

Imports neither JAX nor the rest of fedax, see `fedax.flower.protocol.wire`.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from flwr.app import RecordDict

from fedax.flower.protocol.wire import pack, unpack

SOCKET, LOG = "worker.sock", "worker.log"
PATIENCE = 300.0
"""Seconds for a worker to come up."""


def relay(content: RecordDict, site: str) -> RecordDict:
    """Returns a client's answer to a message.

    Args:
        content: the order.
        site: the client's folder.

    Raises:
        OSError: there is no worker.
        ValueError: the worker failed. Its log has the reason.
    """
    os.chdir(site)  # the path of a socket has at most about 100 bytes
    with _connect() as worker:
        worker.sendall(pack(content))
        worker.shutdown(socket.SHUT_WR)  # the end of the message
        with worker.makefile("rb") as reply:
            answer = reply.read()
    if not answer:
        raise ValueError("the worker of this client failed; its log has the reason")
    return unpack(answer)


def _connect() -> socket.socket:
    """Returns a connection to the worker. Starts one if there is none, which ends with the parent
    of this process.
    """
    end = time.monotonic() + PATIENCE
    command = [sys.executable, "-P", "-m", "fedax.flower.deploy.worker", ".", str(os.getppid())]
    worker = None
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(SOCKET)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
        else:
            return connection
        if worker is None or worker.poll() == 0:  # 0: another one is just coming up or ending
            with Path(LOG).open("ab") as log:
                worker = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if worker.poll() or time.monotonic() > end:
            lines = Path(LOG).read_text("utf-8", errors="replace").strip().splitlines()
            raise ValueError(f"the worker of this client does not start: {lines[-1:]}")
        time.sleep(0.2)
