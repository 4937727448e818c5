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

from fedax.core import DataError, FedaxError, InvalidInput, Task
from fedax.core.task import Ragged
from fedax.data.tables import read_table
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
    plan = experiment.plan(clients=deployment.clients)
    task = plan.task if data is None else load_client_data(plan.task, partition, data)
    assignments = []
    for label, algorithm in plan.algorithms.items():
        arguments = plan.arguments_of(label)
        assignments.append(
            Assignment(algorithm, arguments["solver"], arguments["schedule"], arguments["channel"])
        )
    return Device(
        task,
        partition,
        deployment.path("clients", partition),
        assignments,
        deployment.secure > 0,
        deployment.clients,
    )


def load_client_data(task: Task, partition: int, path: Path) -> Task:
    """Returns the task with one client's examples instead of all others.

    The file defines `examples(partition)`, which returns the training examples, a dictionary of
    arrays with one row each; or a tuple of training and test examples; or a tuple of training, test
    and validation examples, where None stands for no test examples. Names, types and shapes of rows
    are those of the task. Where the task was made of tables, a table may take the place of a
    dictionary, and is read by the task's encoding: a frame of pandas, or the path of a file.

    Raises:
        InvalidInput: no such file or function.
        DataError: examples of another form, or a table that does not fit the task's encoding;
            validation examples are missing although the task has some; test
            or validation examples that the task has no use for.
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
    returned = examples(partition)
    returned = returned if isinstance(returned, tuple) else (returned,)
    splits = [_read_rows(task, rows) for rows in returned]
    if not 1 <= len(splits) <= 3:
        raise DataError.found(
            f"{path}, examples(partition)",
            f"{len(splits)} values",
            "the training examples, (training, test) or (training, test, validation)",
        )
    train, test, validation = (*splits, None, None)[:3]
    # without this, the client would measure on the stand-in's rows
    if task.validation is not None and validation is None:
        raise DataError.found(
            f"{path}, examples(partition)",
            "no validation examples",
            "(training, test, validation), because the experiment's task has validation examples",
        )
    parts = {"train": _check_examples(task, "train", train, f"{path}, training examples")}
    for split, rows in (("test", test), ("validation", validation)):
        like: Ragged | None = getattr(task, split)
        if like is None:
            if rows is not None:
                raise DataError.found(
                    f"{path}, examples(partition)",
                    f"{split} examples",
                    "none, because the experiment's task has none",
                )
            continue
        no_rows = {name: values[:0] for name, values in like.arrays.items()}
        parts[split] = _check_examples(
            task, split, no_rows if rows is None else rows, f"{path}, {split} examples", True
        )
    data = eqx.tree_at(
        lambda data: [getattr(data, split) for split in parts], task.data, list(parts.values())
    )
    return task.with_data(data)


def _read_rows(task: Task, rows: Any) -> Any:
    """Returns the arrays of a table by the encoding of the task; others as they are."""
    if rows is None or isinstance(rows, Mapping):
        return rows
    if task.encoding is None:
        allowed = "a dictionary of arrays"
        raise DataError.found("a table", "an experiment with no encoding of tables", allowed)
    return task.encoding.apply(read_table(rows, task.encoding.categories))


def _check_examples(
    task: Task, split: str, examples: Any, where: str, allow_empty: bool = False
) -> Ragged:
    """Returns a client's examples as those of the task's split.

    Raises:
        DataError: other names, shapes or types, or whole numbers outside of those in all splits.
    """
    like: Ragged = getattr(task, split)
    forms = {name: (values.shape[1:], str(values.dtype)) for name, values in like.arrays.items()}
    if not isinstance(examples, Mapping) or set(examples) != set(forms):
        got = sorted(examples) if isinstance(examples, Mapping) else examples
        raise DataError.of(where, got, f"a dictionary of arrays {sorted(forms)}")
    client_split = Ragged.of([examples], where=where, allow_empty=allow_empty)
    for name, (shape, dtype) in forms.items():
        values, task_values = np.asarray(client_split.arrays[name]), np.asarray(like.arrays[name])
        if values.shape[1:] != shape or values.dtype.kind != task_values.dtype.kind:
            got = f"{values.dtype} rows of shape {values.shape[1:]}"
            raise DataError.found(
                f"{where}, {name!r}",
                got,
                f"{dtype} rows of shape {shape}, as in the experiment's task",
            )
        # a few test rows of a stand-in may lack a class that its training rows have
        others = [
            np.asarray(data.arrays[name])
            for data in (task.train, task.test, task.validation)
            if data is not None and name in data.arrays and data.total
        ]
        if task_values.dtype.kind in "iu" and values.size and others:
            lowest = min(int(numbers.min()) for numbers in others)
            highest = max(int(numbers.max()) for numbers in others)
            if values.min() < lowest or values.max() > highest:
                got = f"numbers from {values.min()} to {values.max()}"
                raise DataError.found(
                    f"{where}, {name!r}", got, f"{lowest} to {highest}, as in the experiment's task"
                )
    return eqx.tree_at(
        lambda data: data.arrays,
        client_split,
        {name: np.asarray(v, forms[name][1]) for name, v in client_split.arrays.items()},
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
def open_socket() -> Iterator[tuple[socket.socket, Path]]:
    """Opens a Unix socket for `work` while the block runs, and yields it with its path.

    Its folder is the owner's alone.

    Raises:
        FedaxError: the folder for temporary files has no place for a socket.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fedax-") as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        address = Path(folder) / "worker"
        try:
            listener.bind(str(address))
        except OSError as error:
            raise FedaxError(
                f"{address}: a Unix socket cannot be made ({error}). Set TMPDIR to a folder with "
                "a short path on this machine."
            ) from error
        listener.listen()
        yield listener, address


def work(device: Device, listener: socket.socket, is_running: Callable[[], bool]) -> None:
    """Answers the messages that ClientApps hand on, one after the other.

    Args:
        device: the client.
        listener: a Unix socket that listens.
        is_running: asked between two messages whether to go on.
    """
    listener.settimeout(PAUSE)
    while is_running():
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
