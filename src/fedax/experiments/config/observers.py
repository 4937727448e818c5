"""The observers of an experiment."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

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
    "local_spread": observe.LocalSpread,
    "constraints": observe.Constraints,
    "curvature": observe.Curvature,
    "inexactness": observe.Inexactness,
    "local_work": observe.LocalWork,
    "solve_errors": observe.SolveErrors,
    "surrogate_diversity": observe.SurrogateDiversity,
    "optimum": observe.Optimum,
    "unseen_accuracy": observe.Unseen,
    "validation_auc": lambda: observe.AUC(split="validation"),
    "validation_f1": lambda: observe.F1(split="validation"),
    "test_auc": observe.AUC,
    "test_f1": observe.F1,
    "test_calibration_error": observe.CalibrationError,
}
"""Observers by their name in experiment files."""
ON_DEMAND = (
    "training_loss",
    "dissimilarity",
    "local_accuracy",
    "consensus",
    "consensus_square",
    "node_accuracy",
    "objective",
    "extremes",
    "client_weights",
    "local_spread",
    "constraints",
    "curvature",
    "inexactness",
    "local_work",
    "solve_errors",
    "surrogate_diversity",
    "optimum",
    "validation_auc",
    "validation_f1",
    "test_auc",
    "test_f1",
    "test_calibration_error",
)
"""Observers that must be asked for; the others are on by default, if the task has what they
need."""


def observer_of(
    name: str, minimum: float | None, unseen_steps: int | None, best: Optimum | None = None
) -> Observer:
    """Makes an observer by name with the options that the experiment gives it.

    `best` is the minimiser, where it was computed.
    """
    # the gap of `objective` needs a minimum: a given one comes before the computed one
    known_minimum = best.value if minimum is None and best is not None else minimum
    options: dict[str, dict[str, Any]] = {
        name: {"minimum": known_minimum} for name in ("objective", "local_spread")
    }
    # without a minimiser the point is empty, which `Optimum` refuses for its size
    options["optimum"] = {"point": jnp.asarray([] if best is None else best.w, float)}
    options["unseen_accuracy"] = {} if unseen_steps is None else {"steps": unseen_steps}
    observer = find(
        "observer",
        name,
        OBSERVERS,
        "a class derived from fedax.observe.Observer, or an object of one",
        _is_observer,
    )
    return observer if isinstance(observer, Observer) else observer(**options.get(name, {}))


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


def check_examples(
    metrics: Iterable[tuple[str, str]],
    task: Task,
    refuse: Callable[[tuple[str], InvalidInput], NoReturn],
) -> None:
    """Refuses metrics of validation examples where a task has none, and says how a file keeps some.

    Args:
        metrics: the keys or tables of a file that need one, and its name.
        task: of the experiment.
        refuse: raises an error about a key.
    """
    for section, metric in metrics:
        if task.validation is None and metric in OBSERVERS and metric.startswith("validation"):
            reason = f"{metric!r} is asked for, but the task has no validation examples"
            hint = "Keep some: [task] validation = 0.2."
            refuse((section,), InvalidInput.because(section, reason, hint))


def select_observers(
    names: Sequence[str],
    make: Callable[..., Observer],
    task: Task,
    runs: Sequence[tuple[Algorithm[Any], Schedule]],
) -> list[Observer]:
    """Makes the observers that an experiment asks for, with the minimiser if `optimum` is among
    them, and checks them.

    Args:
        names: of `OBSERVERS`.
        make: an observer by its name and the minimiser, or None.
        task: of the experiment.
        runs: every algorithm with its schedule.
    """
    best = minimiser(task, runs) if "optimum" in names else None
    observers = [make(name, best) for name in names]
    for observer in observers:
        observer.check(task)
    return observers


def default_observers(
    task: Task, make: Callable[[str], Observer], required_metrics: Collection[str], is_private: bool
) -> list[Observer]:
    """Makes the observers that fit a task; of `ON_DEMAND` only those that are needed.

    With privacy others than those on a test set at the server are on demand too.
    """
    at_server = () if task.central is None else ("test_loss", "test_accuracy")
    observers: list[Observer] = []
    for name in OBSERVERS:
        is_usual = name in at_server if is_private else name not in ON_DEMAND
        if is_usual or name in required_metrics:
            with contextlib.suppress(InvalidInput):
                make(name).check(task)
                observers.append(make(name))
    return observers
