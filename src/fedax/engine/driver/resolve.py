"""Resolves symbolic hyperparameters such as `"theory"` to numbers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import PyTree

from fedax.core.algorithm import Algorithm
from fedax.core.hyper import symbolic
from fedax.core.task import Task
from fedax.engine.driver.options import RunOptions
from fedax.errors import InvalidInput
from fedax.theory.constants import Measured

FittedValues = dict[str, np.ndarray]


def resolve(
    algorithms: Sequence[Algorithm[Any]],
    task: Task,
    options: RunOptions,
    starts: Sequence[PyTree] = (),
) -> tuple[list[Algorithm[Any]], RunOptions, list[FittedValues]]:
    """Resolves symbolic hyperparameters.

    Returns algorithms, options, and for each algorithm its numbers, see `History.fitted`.

    Nothing is measured if there are no symbolic values. Where the smoothness behind the numbers is
    an estimate, they have it too, as `smoothness_estimate`.

    Args:
        algorithms: of the run.
        task: of the run.
        options: of the run.
        starts: the parameters from which the runs start, one pytree for each seed; those of
            `estimate.Losses` by default.

    Raises:
        InvalidInput: a private run, an engine without all clients' examples here, or a task without
            these constants.
    """
    is_private = options.channel is not None and options.channel.privacy is not None
    for owner in (options.solver, *algorithms):
        for name in symbolic(owner)[:1]:
            field = f"{type(owner).__name__}({name}=...)"
            if is_private:
                allowed = "numbers in a private run; the word stands for one fitted to the examples"
                raise InvalidInput.of(field, getattr(owner, name), allowed)
            if not options.engine.has_all(task):
                allowed = "numbers on an engine that has not everybody's examples here"
                raise InvalidInput.of(field, getattr(owner, name), allowed)
    # lazy: nothing is measured unless a hyperparameter asks for it
    constants = Measured(task, options.schedule, starts=starts)
    solver = options.solver.fitted(constants)
    resolved = [algorithm.fitted(constants) for algorithm in algorithms]
    shared = {
        f"solver.{name}": value for name, value in _resolved_values(options.solver, solver).items()
    }
    fitted_values = [
        shared | _resolved_values(original, replacement)
        for original, replacement in zip(algorithms, resolved, strict=True)
    ]
    if any(fitted_values) and constants.estimated:
        fitted_values = [
            numbers | {"smoothness_estimate": constants.smoothness} if numbers else numbers
            for numbers in fitted_values
        ]
    return resolved, dataclasses.replace(options, solver=solver), fitted_values


def has_symbolic(algorithms: Sequence[Algorithm[Any]], options: RunOptions) -> bool:
    """Returns whether the run has symbolic hyperparameters, which each start resolves."""
    return any(symbolic(owner) for owner in (options.solver, *algorithms))


def _resolved_values(original: object, replacement: object) -> FittedValues:
    return {name: np.asarray(getattr(replacement, name)) for name in symbolic(original)}
