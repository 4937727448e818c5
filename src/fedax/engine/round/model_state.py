"""State of the model between rounds, such as batch statistics.

It travels beside uploads, hidden from the algorithm.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedax.core.bound_model import state_from_mean, state_in_reals
from fedax.core.federation import ClientStates, Gathered
from fedax.core.task import Task


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
    if isinstance(model_state, ClientStates):
        reals = model_state.each(state_in_reals)
        mean = reals.mean(default=state_in_reals(task.state))
        model_state = state_from_mean(mean, task.state)
    return task.at(model_state)
