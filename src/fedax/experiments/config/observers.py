"""The observers of an experiment."""

import contextlib
from collections.abc import Callable
from typing import Any

from fedax import observe
from fedax.core import InvalidInput, Task
from fedax.core.hyper import is_concrete
from fedax.observe.base import Observer
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
    "unseen_accuracy": observe.Unseen,
    "local_validation_loss_pooled": lambda: _own_validation("loss"),
    "local_validation_accuracy_pooled": lambda: _own_validation("accuracy"),
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


def make_observer(name: str, minimum: float | None, unseen_steps: int | None) -> Observer:
    """Makes an observer by name with the options that the experiment gives it."""
    allowed = "a class derived from fedax.observe.Observer, or an object of one"
    observer = find("observer", name, OBSERVERS, allowed, _is_observer)
    if isinstance(observer, Observer):
        return observer
    options: dict[str, Any] = {}
    if name == "objective":
        options["minimum"] = minimum
    if name == "unseen_accuracy" and unseen_steps is not None:
        options["steps"] = unseen_steps
    return observer(**options)


def _is_observer(value: object) -> bool:
    return isinstance(value, Observer) or is_concrete(value, Observer)


def _own_validation(score: str) -> Observer:
    return observe.ClientAccuracy(score, personal=True, split="validation")


def default_observers(task: Task, is_private: bool, is_personal: bool) -> list[str]:
    """Returns the observers of `BY_DEFAULT` that fit a task, and the one of the clients' own models
    for methods that have such.

    With privacy others than those on a test set at the server are on demand too.
    """
    default = BY_DEFAULT
    if is_personal:
        default += ("local_accuracy",)
    if is_private:
        default = () if task.central is None else ("test_loss", "test_accuracy")
    names: list[str] = []
    for name in default:
        with contextlib.suppress(InvalidInput):
            OBSERVERS[name]().check(task)
            names.append(name)
    return names
