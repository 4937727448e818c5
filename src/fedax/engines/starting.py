"""The start of a run from a given model."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from fedax.core.task import Given, Task
from fedax.params import leaf_names, placed, read_weights, state_in


def started(task: Task, params: Any) -> Task:
    """The task with another starting point, whatever the seed; the same task for None.

    Args:
        task: of the run.
        params: a pytree with leaves of the task's names and shapes, or the path of a file with such a model, and perhaps its state.

    Raises:
        InvalidInput: a model that is not the task's; the message names the leaf.
    """
    if params is None:
        return task
    if isinstance(params, str | Path):
        held = read_weights(Path(params)).arrays
        start = Given(placed(held, task, str(params)))
        return dataclasses.replace(task.at(state_in(held, task, str(params))), start=start)
    arrays = dict(zip(leaf_names(params), jax.tree.leaves(params), strict=True))
    return dataclasses.replace(task, start=Given(placed(arrays, task, "run(params=...)")))
