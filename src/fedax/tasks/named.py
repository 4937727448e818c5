"""Ready-made tasks by name."""

from collections.abc import Callable
from typing import Any

from fedax.core import InvalidInput, Task, UnknownName
from fedax.data.options import check_options, options_of
from fedax.models import Model
from fedax.tasks import sources
from fedax.tasks.hub import hub
from fedax.tasks.language import language
from fedax.tasks.logistic import a5a, a9a, libsvm, mushrooms, w8a
from fedax.tasks.splits import COMMON, apply_common_options
from fedax.tasks.tweets import sent140
from fedax.utils.arguments import checked_call

SOURCES = (
    "cifar10",
    "client_files",
    "digits",
    "fashion_mnist",
    "femnist",
    "femnist_letters",
    "mnist",
    "mnist_devices",
    "mnist_writers",
    "shakespeare",
    "stored_clients",
    "synthetic",
    "tinyshakespeare",
)
"""Data sets of which `of_source` makes tasks."""


@checked_call
def task_makers() -> dict[str, Callable[..., Task]]:
    """Returns the makers of all ready-made tasks by name.

    >>> "digits" in task_makers()
    True
    """
    convex = {"a5a": a5a, "a9a": a9a, "libsvm": libsvm, "mushrooms": mushrooms, "w8a": w8a}
    texts = {"sent140": sent140, "hub": hub, "language": language}
    return convex | texts | {name: getattr(sources, name) for name in SOURCES}


@checked_call
def defaults(name: str, **options: Any) -> dict[str, Any]:
    """Returns every option of the task `name` with its default.

    Among them those of the partition that `options` chooses.

    >>> defaults("digits", partition="dirichlet")["alpha"]
    0.5

    Raises:
        UnknownName: no such task or partition.
    """
    if name not in task_makers():
        raise UnknownName.among("task", name, task_makers())
    return options_of(name, task_makers()[name], options) | dict.fromkeys(COMMON)


@checked_call
def make_task(name: str, **options: Any) -> Task:
    """Makes a task by name, as experiment files and the command line do.

    Every task has the options `validation` and `held_back`, shares in [0, 1) of each client's
    training examples and of the clients (see `with_validation` and `with_held_back`; their seed is
    the task's), and `params`, a file with the model to start from (see `fedax.load_params`).

    >>> make_task("digits", partition="iid", clients=4).train.clients
    4
    >>> make_task("digits", partition="iid", clients=4, held_back=0.25).train.clients
    3

    Raises:
        UnknownName: no such task or option; the message holds the nearest name.
        InvalidInput: an option out of its range, before any work.
    """
    known = defaults(name, **options)
    check_options("task", name, known, options)
    if not isinstance(options.get("model", ""), str | Model):
        raise InvalidInput.of(f"{name}(model=...)", options["model"], "the name of a model, or a model")
    own, common = ({k: v for k, v in options.items() if (k in COMMON) == wanted} for wanted in (False, True))
    return apply_common_options(task_makers()[name](**own), name, options, **common)
