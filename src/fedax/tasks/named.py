"""Ready-made tasks by name."""

from collections.abc import Callable
from typing import Any

from fedax.core import InvalidInput, Task
from fedax.data.limits import check_types
from fedax.data.options import check_options, options_of
from fedax.tasks import sources
from fedax.tasks.logistic import a5a, a9a, libsvm, mushrooms, w8a
from fedax.tasks.splits import COMMON, apply_common_options
from fedax.tasks.tweets import sent140
from fedax.utils.numbers import python_argument
from fedax.utils.plugins import find, is_user_code, title_of

SOURCES = (
    "cifar10",
    "digits",
    "fashion_mnist",
    "femnist",
    "femnist_letters",
    "mnist",
    "mnist_devices",
    "mnist_writers",
    "shakespeare",
    "stored",
    "synthetic",
    "tinyshakespeare",
)
"""Data sets of which `of_source` makes tasks."""


def task_makers() -> dict[str, Callable[..., Task]]:
    """Returns the makers of all ready-made tasks by name.

    >>> "digits" in task_makers()
    True
    """
    convex = {"a5a": a5a, "a9a": a9a, "libsvm": libsvm, "mushrooms": mushrooms, "w8a": w8a}
    others = {"sent140": sent140, "table": sources.from_table}
    return convex | others | {name: getattr(sources, name) for name in SOURCES}


def defaults(name: str, **options: Any) -> dict[str, Any]:
    """Returns every option of the task `name` with its default.

    Among them those of the partition that `options` chooses.

    >>> defaults("digits", partition="dirichlet")["alpha"]
    0.5

    Raises:
        UnknownName: no such task or partition.
    """
    return options_of(name, task_maker(name), options) | dict.fromkeys(COMMON)


def task_maker(name: str) -> Callable[..., Task]:
    """Returns the function that makes a task, built-in or your own: `path/to/file.py:name`,
    `package.module:name`.

    Your own may also be a `Task` without options.

    Raises:
        UnknownName: no such task; the message holds the nearest name.
        InvalidInput: a file or a module that cannot be loaded, or something else than a function or
            a task.
    """
    allowed = "a function that returns a fedax.Task, or a fedax.Task"
    maker = find(
        "task",
        name,
        task_makers(),
        allowed,
        lambda value: callable(value) or isinstance(value, Task),
    )
    return (lambda: maker) if isinstance(maker, Task) else maker


def make_task(name: str, **options: Any) -> Task:
    """Makes a task by name, as experiment files and the command line do.

    Every task has the options `validation` and `unseen`, shares in [0, 1) of each client's
    training examples and of the clients (see `with_validation` and `with_unseen` of
    `FederatedData`; their seed is the task's), and `params`, a file with the model to start from
    (see `fedax.load_params`).

    >>> make_task("digits", partition="iid", clients=4).train.clients
    4
    >>> make_task("digits", partition="iid", clients=4, unseen=0.25).train.clients
    3

    Raises:
        UnknownName: no such task or option; the message holds the nearest name.
        InvalidInput: an option out of its range, before any work.
    """
    options = {key: python_argument(value) for key, value in options.items()}
    all_options = defaults(name, **options)
    check_options("task", name, all_options, options)
    model = options.get("model", all_options.get("model"))
    # None is allowed where it is the default
    if not (
        isinstance(model, str)
        or callable(getattr(model, "apply", model))
        or model is all_options.get("model")
    ):
        raise InvalidInput.of(f"{name}(model=...)", model, "the name of a model, or a model")
    # the maker's own options, and those that every task has
    task_options, common = (
        {k: v for k, v in options.items() if (k in COMMON) == is_common}
        for is_common in (False, True)
    )
    maker = task_maker(name)
    if is_user_code("task", name):  # built-in tasks check ranges themselves
        check_types(title_of(name), maker, task_options)
    task = maker(**task_options)
    if not isinstance(task, Task):
        raise InvalidInput.found(
            "task", f"{name!r}, which returns an object of {type(task).__name__}", "a fedax.Task"
        )
    return apply_common_options(task, name, options, **common)
