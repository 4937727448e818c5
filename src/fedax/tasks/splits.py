"""Options that every task by name has: validation, unseen clients, another starting point."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedax.core import InvalidInput, Task
from fedax.core.task import Given
from fedax.data.limits import TEST_FRACTION, check
from fedax.models.storage import place_model, read_weights

COMMON = ("validation", "unseen", "params")
"""Options that every task by name has."""


def apply_common_options(
    task: Task,
    name: str,
    options: Mapping[str, Any],
    validation: Any = None,
    unseen: Any = None,
    params: Any = None,
) -> Task:
    """Applies the options that all tasks have; `options`, the task's own, has the seed."""
    for option, share in (("validation", validation), ("unseen", unseen)):
        check(name, {option: TEST_FRACTION}, {} if share is None else {option: share})
    if validation and options.get("frozen"):
        hint = "Draw crops and flips in every step: frozen = false."
        raise InvalidInput.because(
            f"{name}(validation=...)", "the examples would be cropped and flipped too", hint
        )
    if params is not None and not isinstance(params, str):
        raise InvalidInput.of(f"{name}(params=...)", params, "the path of a file")
    seed = options.get("seed", 0)
    # unseen clients first: validation examples are taken from those that take part
    data = task.data.with_unseen(unseen or 0, seed).with_validation(validation or 0, seed)
    changed = task if data is task.data else dataclasses.replace(task, data=data)
    if params is None:
        return changed
    start, changed = place_model(read_weights(Path(params)).arrays, changed, params)
    return dataclasses.replace(changed, start=Given(start))
