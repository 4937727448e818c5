"""Ready-made tasks by name."""

import inspect
from collections.abc import Callable
from typing import Any

from fedax.core import InvalidInput, Task, UnknownName
from fedax.data import partition_options
from fedax.models import Model
from fedax.tasks import sources
from fedax.tasks.logistic import a5a, a9a, libsvm, mushrooms, w8a
from fedax.tasks.ready import digits, mnist, synthetic

SOURCES = (
    "cifar10",
    "client_files",
    "fashion_mnist",
    "femnist",
    "mnist_devices",
    "mnist_writers",
    "shakespeare",
    "tinyshakespeare",
)
"""Data sets whose tasks have no options of their own beside model and l2."""


def catalogue() -> dict[str, Callable[..., Task]]:
    """All ready-made tasks by name.

    >>> "digits" in catalogue()
    True
    """
    convex = {"a5a": a5a, "a9a": a9a, "libsvm": libsvm, "mushrooms": mushrooms, "w8a": w8a}
    own = {"digits": digits, "mnist": mnist, "synthetic": synthetic}
    made = [getattr(sources, name) for name in SOURCES]
    return convex | own | dict(zip(SOURCES, made))


def defaults(name: str, **options: Any) -> dict[str, Any]:
    """Every option of a task with its default, among them those of the partition that `options` chooses.

    >>> defaults("digits", partition="dirichlet")["alpha"]
    0.5

    Raises:
        UnknownName: no such task or partition.
    """
    if name not in catalogue():
        raise UnknownName.among("task", name, catalogue())
    parameters = inspect.signature(catalogue()[name]).parameters
    known = {key: p.default for key, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    if "partition" not in known:
        return known
    partition = options.get("partition", known["partition"])
    if not isinstance(partition, str):
        raise InvalidInput.of(f"{name}(partition=...)", partition, "the name of a partition")
    return known | partition_options(partition)


def make(name: str, **options: Any) -> Task:
    """A task by name, as experiment files and the command line make it.

    >>> make("digits", partition="iid", clients=4).train.clients
    4

    Raises:
        UnknownName: no such task or option; the message holds the nearest name.
        InvalidInput: an option out of its range, before any work.
    """
    known = defaults(name, **options)
    for key in options:
        if key not in known:
            raise UnknownName.among(f"option of task {name!r}", key, known)
    if not isinstance(options.get("model", ""), str | Model):
        raise InvalidInput.of(f"{name}(model=...)", options["model"], "the name of a model, or a model")
    return catalogue()[name](**options)
