"""Conformance tests of federated algorithms and tasks: laws that hold for those of this library and
for yours.

- `check`: tests a method against all laws, as `fedax check FILE:Class` does, or a task, as
  `fedax check --task FILE:name` does; each result is a `Verdict`.
- `LAWS`: the laws of methods; `TASK_LAWS`: those of tasks. `Law.test` is for tests of your own: it
  raises `Broken`, or `Skipped` where a law says nothing about a method.
- `Method`: a method under test.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from fedax.conformance.laws import LAWS as LAWS
from fedax.conformance.method import Broken as Broken
from fedax.conformance.method import Law as Law
from fedax.conformance.method import Method as Method
from fedax.conformance.method import Skipped as Skipped
from fedax.conformance.method import Verdict as Verdict
from fedax.conformance.tasks import TASK_LAWS as TASK_LAWS
from fedax.core import Algorithm, Task


def check(
    subject: type[Algorithm[Any]] | Algorithm[Any] | Method | Task,
    laws: Sequence[Law] | None = None,
) -> Iterator[Verdict]:
    """Tests a method or a task against laws, and yields a verdict as soon as one is known.

    Args:
        subject: a class of methods, an algorithm with its hyperparameters, or a task.
        laws: some of `LAWS`, or of `TASK_LAWS` for a task; all of them by default.

    >>> import fedax
    >>> from fedax.conformance import LAWS
    >>> [verdict.kind for verdict in check(fedax.FedAvg, [LAWS["counts_its_traffic"]])]
    ['holds']
    >>> [verdict.kind for verdict in check(fedax.task("synthetic", clients=3))]
    ['holds', 'holds']
    """
    is_task = isinstance(subject, Task)
    for law in laws or (TASK_LAWS if is_task else LAWS).values():
        yield law.judge(subject if is_task else Method.of(subject))
