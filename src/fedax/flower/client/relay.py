"""The ClientApp's side of a client's worker: hands a message on over a Unix socket.

Imports neither JAX nor the rest of fedax, because Flower starts a process of the ClientApp for
every message. Both ends are processes of the same user, so messages travel as pickles: what arrives
from the network was read by Flower, which takes nothing but its records.
"""

import os
import subprocess
import sys
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path

from flwr.app import RecordDict

SOCKET = "worker.sock"
LOG = "worker.log"
PATIENCE = 300.0
"""Seconds for a worker to come up."""


def relay(content: RecordDict, site: str) -> RecordDict:
    """Returns a client's answer to a message.

    Args:
        content: the order.
        site: the client's folder.

    Raises:
        EOFError: the worker failed. Its log has the reason.
        ValueError: it does not start.
    """
    os.chdir(site)  # the path of a socket has at most about 100 bytes
    with _connect() as worker:
        worker.send(content)
        return worker.recv()


def _connect() -> Connection:
    """Returns a connection to the worker. Starts one if there is none, which ends with the parent
    of this process.
    """
    end = time.monotonic() + PATIENCE
    command = [sys.executable, "-P", "-m", "fedax.flower.deploy.worker", ".", str(os.getppid())]
    worker = None
    while True:
        try:
            return Client(SOCKET, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            """It is not up yet."""
        if worker is None or worker.poll() == 0:  # 0: another one is just coming up or ending
            with Path(LOG).open("ab") as log:
                worker = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if worker.poll() or time.monotonic() > end:
            # nothing of the log, which may show examples: the error goes to the server
            raise ValueError("the worker of this client does not start, see its worker.log")
        time.sleep(0.2)
