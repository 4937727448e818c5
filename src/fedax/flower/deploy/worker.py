"""A client's worker: answers the messages of its SuperNode, and stays warm in between.

Flower starts a process of the ClientApp for every message, which would load JAX and compile each
time. That process hands the message on to the worker over a Unix socket, see
`fedax.flower.client.relay`. The worker runs the fedax and the experiment that are on its disk.
"""

import contextlib
import logging
import runpy
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from fedax.core import DataError, InvalidInput, Task
from fedax.core.task import Ragged
from fedax.flower.client.device import Device
from fedax.flower.deploy.settings import Deployment
from fedax.flower.protocol.plan import Assignment
from fedax.flower.protocol.wire import pack, unpack

LOG = logging.getLogger("fedax.flower.deploy")
PAUSE, PATIENCE = 0.25, 60.0
"""Seconds to wait for a ClientApp before the next look at the node, and for a ClientApp that has
connected."""


def device_for(deployment: Deployment, partition: int, data: Path | None = None) -> Device:
    """Returns the device of a client, by the experiment in its folder.

    Args:
        deployment: the client's copy of the folder.
        partition: its number.
        data: a file of Python with its own examples, see `load_client_data`; by default its part of
            the experiment's task.
    """
    experiment = deployment.experiment("simulation")
    plan = experiment.plan()
    task = plan.task if data is None else load_client_data(plan.task, partition, data)
    assignments = []
    for label, algorithm in plan.algorithms.items():
        given = plan.arguments_of(label)
        assignments.append(
            Assignment(algorithm, given["solver"], given["schedule"], given["channel"])
        )
    return Device(
        task, partition, deployment.path("clients", partition), assignments, deployment.secure > 0
    )


def load_client_data(task: Task, partition: int, path: Path) -> Task:
    """Returns the task with one client's examples instead of all others.

    The file defines `examples(partition)`, which returns the training examples, a dictionary of
    arrays with one row each, or a pair of those and test examples. Names, types and shapes of rows
    are those of the task.

    Raises:
        InvalidInput: no such file or function.
        DataError: examples of another form.
    """
    if not path.is_file():
        raise InvalidInput.of(
            "--data", str(path), "a file of Python that defines examples(partition)"
        )
    examples = runpy.run_path(str(path)).get("examples")
    if not callable(examples):
        raise InvalidInput.found(
            "--data", f"{path} without examples(partition)", "a file that defines this function"
        )
    given = examples(partition)
    train, test = given if isinstance(given, tuple) else (given, None)
    own = eqx.tree_at(
        lambda t: t.train, task, _checked(task.train, train, f"{path}, training examples")
    )
    if task.test is None:
        return own
    nothing = {name: values[:0] for name, values in task.test.arrays.items()}
    rows = _checked(
        task.test, nothing if test is None else test, f"{path}, test examples", allow_empty=True
    )
    return eqx.tree_at(lambda t: t.test, own, rows)


def _checked(like: Ragged, given: Any, where: str, allow_empty: bool = False) -> Ragged:
    forms = {name: (values.shape[1:], str(values.dtype)) for name, values in like.arrays.items()}
    if not isinstance(given, Mapping) or set(given) != set(forms):
        got = sorted(given) if isinstance(given, Mapping) else given
        raise DataError.of(where, got, f"a dictionary of arrays {sorted(forms)}")
    own = Ragged.of([given], where=where, allow_empty=allow_empty)
    for name, (shape, dtype) in forms.items():
        values, known = np.asarray(own.arrays[name]), np.asarray(like.arrays[name])
        if values.shape[1:] != shape or values.dtype.kind != known.dtype.kind:
            got = f"{values.dtype} rows of shape {values.shape[1:]}"
            raise DataError.found(
                f"{where}, {name!r}",
                got,
                f"{dtype} rows of shape {shape}, as in the experiment's task",
            )
        if known.dtype.kind in "iu" and values.size and known.size:
            least, most = int(known.min()), int(known.max())
            if values.min() < least or values.max() > most:
                got = f"numbers from {values.min()} to {values.max()}"
                raise DataError.found(
                    f"{where}, {name!r}", got, f"{least} to {most}, as in the experiment's task"
                )
    return eqx.tree_at(
        lambda data: data.arrays,
        own,
        {name: np.asarray(v, forms[name][1]) for name, v in own.arrays.items()},
    )


_DEVICES: dict[tuple[str, int, str], Device] = {}


def device_of(config: Mapping[str, Any]) -> Device:
    """Returns the device that a node's configuration names, with `deployment`, `partition-id` and
    `data`; made once.
    """
    key = str(config["deployment"]), int(config["partition-id"]), str(config.get("data", ""))
    if key not in _DEVICES:
        folder, k, data = key
        _DEVICES[key] = device_for(Deployment.load(Path(folder)), k, Path(data) if data else None)
    return _DEVICES[key]


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, Path]]:
    """Opens a Unix socket for `work` while the block runs, and yields it with its path."""
    with (
        tempfile.TemporaryDirectory(
            prefix="fedax-"
        ) as place,  # the owner's alone; a socket's path must be short
        socket.socket(socket.AF_UNIX) as listener,
    ):
        address = Path(place) / "worker"
        listener.bind(str(address))
        listener.listen()
        yield listener, address


def work(device: Device, listener: socket.socket, going: Callable[[], bool]) -> None:
    """Answers the messages that ClientApps hand on, one after the other.

    Args:
        device: the client.
        listener: a Unix socket that listens.
        going: asked between two messages whether to go on.
    """
    listener.settimeout(PAUSE)
    while going():
        try:
            app, _ = listener.accept()
        except TimeoutError:
            continue
        with app:
            app.settimeout(PATIENCE)
            _answer(device, app)


def _answer(device: Device, app: socket.socket) -> None:
    """Answers one message. A failure closes the connection and leaves the worker as it was."""
    try:
        with app.makefile("rb") as message:
            content = unpack(message.read())
        app.sendall(pack(device.answer(content)))
    except OSError as error:
        LOG.warning("a message was lost, because its ClientApp has ended: %s", error)
    except Exception as error:
        LOG.exception("a message was lost: %s", error)
