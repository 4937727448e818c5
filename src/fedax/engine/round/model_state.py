"""The model's state between rounds: it travels beside the uploads, so that no algorithm has to know of it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedax.core.bound_model import state_from_mean as state_from_mean
from fedax.core.bound_model import state_in_reals as state_in_reals
from fedax.core.federation import Gathered, Memory
from fedax.core.task import Task


class Sent(eqx.Module):
    """An upload's value, and beside it the model's state after the work, in real numbers."""

    value: Any
    state: PyTree


def shared_state(task: Task) -> PyTree:
    """The state that the server sends and averages, before round 0; None if none travels."""
    return task.state if task.state_policy == "average" else None


def mean_of_rows(gathered: Gathered[Any]) -> PyTree:
    """The weighted mean of gathered states."""
    shares = gathered.shares()
    return jax.tree.map(lambda rows: jnp.tensordot(shares.astype(rows.dtype), rows, 1), gathered.value)


def task_as_evaluated(task: Task, model_state: Any) -> Task:
    """The task with the state in which the global model is looked at: of states that clients keep, their mean."""
    if isinstance(model_state, Memory):
        model_state = state_from_mean(model_state.each(state_in_reals).mean(), task.state)
    return task.at(model_state)
