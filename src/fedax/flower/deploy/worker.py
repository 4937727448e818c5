"""A client's worker: answers the messages of its SuperNode, and stays warm in between.

    python -m fedax.flower.deploy.worker SITE PARENT

Flower starts a process of the ClientApp for every message, which would load JAX and compile each
time. That process hands the message on to the worker over a Unix socket, see
`fedax.flower.client.relay`, which also starts the worker. The worker runs the fedax and the
experiment that are on its disk.
"""

import contextlib
import os
import runpy
import sys
import threading
import time
import tomllib
from collections.abc import Mapping
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np

from fedax.core import DataError, RunExists, Task
from fedax.data.tables import read_table
from fedax.engine.round.single_client import with_parts
from fedax.examples.federated import make_part
from fedax.examples.ragged import Ragged
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.running.setup import set_up_jax
from fedax.flower.client.relay import SOCKET
from fedax.flower.client.worker import Worker
from fedax.flower.protocol.plan import Assignment
from fedax.utils.lock import held

PAUSE = 0.25
"""Seconds between two looks at the SuperNode."""
SITE = "site.toml"
"""The file of a client's folder with its settings."""


def worker_for(site: Path) -> Worker:
    """Returns the worker of a client, by the experiment and the settings in its folder."""
    settings = tomllib.loads((site / SITE).read_text())
    partition = settings["partition"]
    clients = settings["clients"]
    experiment = Experiment.read(site / "experiment.toml", ['engine="simulation"'])
    plan = experiment.plan(clients=clients)
    task = plan.task
    if settings["data"]:
        task = load_client_data(task, partition, site / settings["data"])
    elif task.is_single and clients > 1:
        reason = "the task is a stand-in, which has no examples of this client"
        raise DataError.because(str(site), reason, "Pack it with --data FILE.")
    assignments = []
    for label, algorithm in plan.algorithms.items():
        arguments = plan.arguments_of(label)
        assignments.append(
            Assignment(algorithm, arguments["solver"], arguments["schedule"], arguments["channel"])
        )
    return Worker(task, partition, site / "states", assignments, settings["secure"] > 0, clients)


def load_client_data(task: Task, partition: int, path: Path) -> Task:
    """Returns the task with one client's examples instead of all others.

    The file defines `examples(partition)`, which returns the training examples, a dictionary of
    arrays with one row each; or a tuple of training and test examples; or a tuple of training, test
    and validation examples, where None stands for no test examples. Names, types and shapes of rows
    are those of the task. Where the task was made of tables, a table may take the place of a
    dictionary, and is read by the task's encoding: a frame of pandas, or the path of a file.

    Raises:
        DataError: examples of another form, or a table that does not fit the task's encoding;
            validation examples are missing although the task has some; test or validation examples
            that the task has no use for.
    """
    returned = runpy.run_path(str(path))["examples"](partition)
    returned = returned if isinstance(returned, tuple) else (returned,)
    parts = {}
    for split, rows in zip(("train", "test", "validation"), (*returned, None, None), strict=False):
        like: Ragged | None = getattr(task, split)
        where = f"{path}, {split} examples"
        if rows is None and like is not None and split == "test":
            rows = {name: values[:0] for name, values in like.arrays.items()}
        # without validation rows, the client would measure on the stand-in's
        if (rows is None) != (like is None):
            got = f"{'no ' if rows is None else ''}{split} examples"
            raise DataError.found(where, got, "some if and only if the experiment's task has some")
        if like is None:
            continue
        if task.encoding is not None and not isinstance(rows, Mapping):
            rows = task.encoding.apply(read_table(rows, task.encoding.categories))
        part = make_part([rows], where, task.data.classes, like, split != "train")
        for name, values in part.arrays.items():
            _check_numbers(task, name, np.asarray(values), f"{where}[{name!r}]")
        parts[split] = part
    return task.with_data(with_parts(task.data, parts))


def _check_numbers(task: Task, name: str, values: np.ndarray, where: str) -> None:
    """Refuses whole numbers, such as classes, outside of those that the task has."""
    if values.dtype.kind not in "iu" or not values.size:
        return
    # a few test rows of a stand-in may lack a class that its training rows have
    known = np.concatenate([np.ravel(part.arrays[name]) for part in task.data.parts.values()])
    if values.min() < known.min() or values.max() > known.max():
        got = f"numbers from {values.min()} to {values.max()}"
        allowed = f"{known.min()} to {known.max()}, as in the experiment's task"
        raise DataError.found(where, got, allowed)


def serve(worker: Worker, listener: Listener) -> None:
    """Answers the messages that ClientApps hand on, one after the other."""
    while True:
        # a ClientApp may end before it is answered; an order that comes again changes nothing
        with listener.accept() as app, contextlib.suppress(EOFError, OSError):
            app.send(worker.answer(app.recv()))


def end_with(parent: int) -> None:
    """Ends this process once another one has ended."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(parent, 0)
            time.sleep(PAUSE)
    os._exit(0)


def main(site: Path, parent: int) -> None:
    """Works until a process has ended."""
    os.chdir(site)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    try:
        with held(Path(), "worker.lock"):
            set_up_jax(None)
            worker = worker_for(Path())
            Path(SOCKET).unlink(missing_ok=True)
            # the mode of the socket: only the owner may connect
            os.umask(0o077)
            with Listener(SOCKET, "AF_UNIX") as listener:
                serve(worker, listener)
    except RunExists:
        """Another worker has the folder."""


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
