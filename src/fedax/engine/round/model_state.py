"""State of the model between rounds, such as batch statistics.

It travels beside uploads, hidden from the algorithm.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedax.core.bound_model import state_from_mean as state_from_mean
from fedax.core.bound_model import state_in_reals as state_in_reals
from fedax.core.bound_model import takes
from fedax.core.federation import Gathered, Memory
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Task
from fedax.errors import InvalidInput


class Sent(eqx.Module):
    """An upload's value with the model's state after the work, in real numbers."""

    value: Any
    state: PyTree


def shared_state(task: Task) -> PyTree:
    """Returns the initial state that the server sends and averages; None if it sends none."""
    return task.state if task.state_policy == "average" else None


def mean_of_rows(gathered: Gathered[Any]) -> PyTree:
    """Returns the weighted mean of gathered states."""
    shares = gathered.shares()
    return jax.tree.map(
        lambda rows: jnp.tensordot(shares.astype(rows.dtype), rows, 1), gathered.value
    )


def task_as_evaluated(task: Task, model_state: Any) -> Task:
    """Returns the task with the state for evaluation: where clients store states, their mean."""
    if isinstance(model_state, Memory):
        reals = model_state.each(state_in_reals)
        mean = reals.mean(default=state_in_reals(task.state))
        model_state = state_from_mean(mean, task.state)
    return task.at(model_state)


def sees_padding(task: Task, schedule: Schedule, sizes: Sequence[int]) -> bool:
    """Returns whether padded rows of minibatches would enter the batch statistics.

    They would where the loss may couple examples and takes no mask. `sizes` are the examples of
    each client that takes the local steps.
    """
    return task.couples and "mask" not in takes(task.loss) and not schedule.full_batches(sizes)


def padding_refusal(schedule: Schedule, clients: str) -> InvalidInput:
    """Returns the error of a schedule with which padded rows would enter the batch statistics.

    `clients` says whose.
    """
    got = (
        f"{schedule.batch_size!r}, with which some minibatches of {clients} are shorter, of a "
        "model with a state"
    )
    hint = (
        "Let the loss take `mask`, shape (batch,), False for padding, and leave those rows "
        "out of batch statistics (batch norms of Flax and PyTorch do, by from_flax and "
        "from_torch; a module's own statistics do not); or choose a batch_size that divides the "
        f"examples of all {clients}."
    )
    return InvalidInput.found("Schedule(batch_size=...)", got, "minibatches of one size", hint)
