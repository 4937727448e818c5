"""The observers of an experiment."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from fedax import observe
from fedax.core import InvalidInput, Task
from fedax.core.hyper import is_concrete
from fedax.observe.base import Observer
from fedax.utils.plugins import find

OBSERVERS: dict[str, Callable[..., Observer]] = {
    "train_loss": observe.TrainLoss,
    "training_loss": observe.TrainingLoss,
    "client_accuracy": observe.ClientAccuracy,
    "dissimilarity": observe.Dissimilarity,
    "consensus": observe.Consensus,
    "consensus_square": observe.ConsensusSquare,
    "node_accuracy": observe.NodeAccuracy,
    "extremes": observe.Extremes,
    "client_weights": observe.ClientWeights,
    "curvature": observe.Curvature,
    "inexactness": observe.Inexactness,
    "validation_auc": lambda: observe.AUC(split="validation"),
    "validation_f1": lambda: observe.F1(split="validation"),
    "test_auc": observe.AUC,
    "test_f1": observe.F1,
    "test_calibration_error": observe.CalibrationError,
}
"""Observers by their name in experiment files; `observers_of` has them all."""


def observers_of(
    task: Task, minimum: float | None = None, steps: int = 5
) -> dict[str, Callable[..., Observer]]:
    """Returns all observers by name, with those of the task's scores and the experiment's
    options.
    """
    found = OBSERVERS | {
        "objective": functools.partial(observe.Objective, minimum),
        "unseen_accuracy": functools.partial(observe.Unseen, steps=steps),
    }
    for score in ("loss", *task.scores):
        for kind in (observe.TrainScore, observe.ValidationScore, observe.CentralScore):
            found.setdefault(f"{kind.prefix}_{score}", functools.partial(kind, score))
        own = functools.partial(observe.ClientAccuracy, score, personal=True)
        found[f"local_{score}"] = own
        found[f"local_validation_{score}_pooled"] = functools.partial(own, split="validation")
    return found


def make_observer(name: str, known: Mapping[str, Any]) -> Observer:
    """Makes an observer by name."""
    allowed = "a class derived from fedax.observe.Observer, or an object of one"
    observer = find("observer", name, known, allowed, _is_observer)
    return observer if isinstance(observer, Observer) else observer()


def _is_observer(value: object) -> bool:
    return isinstance(value, Observer) or is_concrete(value, Observer)


def default_observers(
    task: Task, known: Mapping[str, Any], is_private: bool, is_personal: bool
) -> list[str]:
    """Returns the observers that fit a task and need not be asked for, among them its scores, and
    those of the clients' own models for methods that have such.

    With privacy others than those on a test set at the server are on demand too.
    """
    scores = ("loss", *task.scores)
    test = [f"test_{score}" for score in scores]
    validation = [f"validation_{score}" for score in scores]
    default = ["train_loss", *validation, *test, "client_accuracy", "unseen_accuracy"]
    if is_personal:
        default += [f"local_{score}" for score in task.scores]
    if is_private:
        default = test if task.central else []
    names = list[str]()
    for name in default:
        with contextlib.suppress(InvalidInput):
            known[name]().check(task)
            names.append(name)
    return names
