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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from fedax.core import DataError, FedaxError, InvalidInput, Task
from fedax.core.task import Ragged
from fedax.data import FederatedData
from fedax.data.client_forms import ColumnOrder, columns_of
from fedax.flower.client.device import Device
from fedax.flower.deploy.settings import Deployment
from fedax.flower.protocol.plan import Assignment
from fedax.flower.protocol.wire import pack, unpack

LOG = logging.getLogger("fedax.flower.deploy")
PAUSE, PATIENCE = 0.25, 60.0
"""Seconds to wait for a ClientApp before the next look at the node, and for a ClientApp that has
connected."""
GIVE_NAMES = "Or let the task, such as a stand-in, have x as a data frame with these columns."
"""What to do about names of columns that the task has not."""


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
    and validation examples, where None stands for no test examples; or data of one client, as
    `fedax.data.client_files` reads them. Names, types and shapes of rows are those of the task.
    Columns of data frames and of `client_files` are matched with the task's by their names.

    Raises:
        InvalidInput: no such file or function.
        DataError: examples of another form, or of other columns or categories; columns with names,
            which the task has not; validation examples are missing although the task has some; test
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
    if isinstance(returned, FederatedData):
        splits = _read_splits(returned, task, f"{path}, examples(partition)")
    else:
        splits = returned if isinstance(returned, tuple) else (returned,)
        splits = _align_splits(splits, task, path)
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


def _read_splits(data: FederatedData, task: Task, where: str) -> tuple[Any, ...]:
    """Returns the training, test and validation examples of the only client.

    Raises:
        DataError: several clients, or other columns or categories than those of the task.
    """
    if data.clients != 1:
        raise DataError.found(where, f"data of {data.clients} clients", "data of one client")
    client_texts, task_texts = data.categories, task.categories
    if client_texts and task_texts and client_texts != task_texts:
        allowed = f"{task_texts}, as in the experiment's task"
        raise DataError.of(f"{where}, categories", client_texts, allowed)
    splits = (data.train, data.test, data.validation)
    arrays = [None if split is None else dict(split[0]) for split in splits]
    if data.columns is not None:
        _check_columns(data.columns, task.columns, f"{where}, columns", GIVE_NAMES)
        if task.columns is not None and data.columns != task.columns:
            order = [data.columns.index(name) for name in task.columns]
            arrays = [split and split | {"x": split["x"][:, order]} for split in arrays]
    return tuple(arrays)


def _align_splits(splits: Sequence[Any], task: Task, path: Path) -> tuple[Any, ...]:
    """Returns a client's splits with the columns of data frames in the task's order, by their
    names.

    Raises:
        DataError: other columns than the task's, columns whose order nobody knows, a split without
            names beside one with names in another order than the task's.
    """
    frames = ColumnOrder(task.columns)
    aligned, orders = [], dict[str, tuple[str, ...] | None]()
    for split, rows in zip(("training", "test", "validation"), splits, strict=False):
        where = f"{path}, {split} examples"
        if not isinstance(rows, Mapping):  # none, or refused later
            aligned.append(rows)
            continue
        for name, values in rows.items():
            if (columns := columns_of([values])) is not None:
                # a task has no names of columns of other arrays than x
                expected, hint = (
                    (task.columns, GIVE_NAMES) if name == "x" else (None, "Write .to_numpy().")
                )
                _check_columns(columns, expected, f"{where}, {name!r}", hint)
        orders[split] = columns_of([rows])
        aligned.append(frames.client(rows, where))
    # an array may be in the order of the frames beside it, which is not the task's
    reordered = [split for split, order in orders.items() if order not in (None, task.columns)]
    unnamed = [split for split, order in orders.items() if order is None]
    if task.columns is not None and reordered and unnamed:
        got = f"an array, beside {reordered[0]} examples with columns in another order"
        allowed = f"a data frame with the columns {list(task.columns)}, as in the other examples"
        raise DataError.found(f"{path}, {unnamed[0]} examples, 'x'", got, allowed)
    return (*aligned, *splits[len(aligned) :])


def _check_columns(
    columns: Sequence[str], expected: Sequence[str] | None, where: str, hint: str
) -> None:
    """Refuses names of columns that are not the task's, or that cannot be brought into its order
    because it has no names. A single column has no order.
    """
    if expected is None and len(columns) > 1:
        allowed = (
            "an array with columns in the task's order, because the experiment's task has no names "
            "of these columns"
        )
        raise DataError.found(where, f"the columns {list(columns)}", allowed, hint)
    if expected is not None and set(columns) != set(expected):
        allowed = f"{list(expected)} in any order, as in the experiment's task"
        raise DataError.of(where, list(columns), allowed)


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
