"""The observers of an experiment."""

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedax import observe
from fedax.core import Algorithm, InvalidInput, Schedule, Task
from fedax.core.hyper import is_concrete
from fedax.observe.base import Observer
from fedax.theory.estimate import Losses, Optimum, lowest_eigenvalue, optimum, smoothness
from fedax.utils.plugins import find

OBSERVERS: dict[str, Callable[..., Observer]] = {
    "train_loss": observe.TrainLoss,
    "training_loss": observe.TrainingLoss,
    "validation_loss": observe.ValidationLoss,
    "validation_accuracy": observe.ValidationAccuracy,
    "test_loss": observe.TestLoss,
    "test_accuracy": observe.TestAccuracy,
    "client_accuracy": observe.ClientAccuracy,
    "local_accuracy": observe.LocalAccuracy,
    "dissimilarity": observe.Dissimilarity,
    "consensus": observe.Consensus,
    "consensus_square": observe.ConsensusSquare,
    "node_accuracy": observe.NodeAccuracy,
    "objective": observe.Objective,
    "extremes": observe.Extremes,
    "client_weights": observe.ClientWeights,
    "curvature": observe.Curvature,
    "inexactness": observe.Inexactness,
    "optimum": observe.Optimum,
    "unseen_accuracy": observe.Unseen,
    "validation_auc": lambda: observe.AUC(split="validation"),
    "validation_f1": lambda: observe.F1(split="validation"),
    "test_auc": observe.AUC,
    "test_f1": observe.F1,
    "test_calibration_error": observe.CalibrationError,
}
"""Observers by their name in experiment files."""
BY_DEFAULT = (
    "train_loss",
    "validation_loss",
    "validation_accuracy",
    "test_loss",
    "test_accuracy",
    "client_accuracy",
    "unseen_accuracy",
)
"""Observers that are on if the task has what they need; the others must be asked for."""


def make_observer(
    name: str, minimum: float | None, unseen_steps: int | None, best: Optimum | None = None
) -> Observer:
    """Makes an observer by name with the options that the experiment gives it.

    `best` is the minimiser, where it was computed.
    """
    allowed = "a class derived from fedax.observe.Observer, or an object of one"
    observer = find("observer", name, OBSERVERS, allowed, _is_observer)
    if isinstance(observer, Observer):
        return observer
    options: dict[str, Any] = {}
    if name == "objective":
        # a given minimum comes before the computed one
        options["minimum"] = best.value if minimum is None and best is not None else minimum
    if name == "optimum":
        # without a minimiser the point is empty, which `Optimum` refuses for its size
        options["point"] = jnp.asarray([] if best is None else best.w, float)
    if name == "unseen_accuracy" and unseen_steps is not None:
        options["steps"] = unseen_steps
    return observer(**options)


def _is_observer(value: object) -> bool:
    return isinstance(value, Observer) or is_concrete(value, Observer)


def minimiser(task: Task, runs: Sequence[tuple[Algorithm[Any], Schedule]]) -> Optimum:
    """Computes the minimiser of the objective that all runs have, for the observer `optimum`.

    Raises:
        InvalidInput: objectives that differ in the clients' weights, that are not convex, or for
            which no minimiser was found.
    """
    # whether clients count alike, over all runs; both values would mean two objectives
    equal = {schedule.weights == "equal" or method.equal_weights for method, schedule in runs}
    if len(equal) > 1:
        allowed = "algorithms with one objective, of clients that count alike or by size"
        raise InvalidInput.of("observe", "optimum", allowed)
    losses = Losses(task, weights="equal" if equal == {True} else "shares")
    curvature = smoothness(losses, tolerance=1e-2)
    # Lanczos is approximate: a small negative eigenvalue may be noise of a convex task
    if lowest_eigenvalue(losses, tolerance=1e-2) < -0.05 * curvature:
        raise InvalidInput.found(
            "observe", "optimum, for a task with negative curvature at the start", "convex tasks"
        )
    solution, initial_norm = optimum(losses), float(np.linalg.norm(losses.gradient(losses.start)))
    # what remains is compared with the gradient at the start, in the number type's accuracy
    if not solution.gradient <= math.sqrt(jnp.finfo(losses.start.dtype).eps) * max(
        initial_norm, 1.0
    ):
        got = f"optimum, for a task on which a gradient of {solution.gradient:.2g} remains"
        raise InvalidInput.found(
            "observe", got, "tasks whose convex objective has a minimiser, such as with l2 above 0"
        )
    return solution


def default_observers(
    task: Task, make: Callable[[str], Observer], required_metrics: Collection[str], is_private: bool
) -> list[Observer]:
    """Makes the observers that fit a task: those of `BY_DEFAULT`, and those that are needed.

    With privacy others than those on a test set at the server are on demand too.
    """
    default: tuple[str, ...] = BY_DEFAULT
    if is_private:
        default = () if task.central is None else ("test_loss", "test_accuracy")
    observers: list[Observer] = []
    for name in OBSERVERS:
        if name in default or name in required_metrics:
            with contextlib.suppress(InvalidInput):
                make(name).check(task)
                observers.append(make(name))
    return observers
