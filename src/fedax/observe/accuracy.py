"""Losses and scores of the global model."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax.numpy as jnp

from fedax.core import InvalidInput, Ragged, Task, UnknownName
from fedax.core.directions import Mode, check_mode, find_mode, mode_field
from fedax.core.hyper import static_number
from fedax.observe.base import Observer, Split, View

Made = TypeVar("Made", bound=Callable[[], Observer])


class TrainLoss(Observer):
    r"""`train_loss`: the mean over all clients' training examples, without l2.

    $\sum_k \frac{n_k}{n} f_k(w)$.

    Every example counts alike, also if the objective counts clients alike, so that it compares
    methods; see `Objective` for what a run minimises.
    """

    lower_is_better = ("train_loss",)

    def __call__(self, view: View) -> dict[str, Any]:
        return {"train_loss": view.overall("train", "loss")}


class Objective(Observer):
    r"""`objective`, which is minimised: the mean of the clients' losses, with l2.

    $\sum_k p_k f_k(w) + \frac{\text{l2}}{2} \lVert w \rVert^2$.

    The shares are $p_k = n_k/n$, so that all training examples count alike, or $p_k = 1/N$ with a
    schedule of `weights="equal"` and for methods without a server, whose clients all count alike.

    With the known minimum also `objective_gap`, how far it is above it; in single precision down to
    about 1e-7 of the minimum.

    Args:
        minimum: of the objective, if it is known.
    """

    minimum: float | None = eqx.field(static=True, default=None, converter=static_number)

    lower_is_better = ("objective", "objective_gap")

    def __call__(self, view: View) -> dict[str, Any]:
        value = view.objective() + view.task.l2 / 2 * jnp.sum(view.w**2)
        return {"objective": value} | (
            {} if self.minimum is None else {"objective_gap": value - self.minimum}
        )


class MeanScore(Observer):
    """Mean of a per-example score over all examples of one split; the base of those below."""

    score: str = eqx.field(static=True, default="accuracy")
    mode: Mode | None = mode_field()

    split: ClassVar[Split]
    called: ClassVar[str]

    def __call__(self, view: View) -> dict[str, Any]:
        return {f"{self.called}_{self.score}": view.overall(self.split, self.score)}

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        return score_modes(self, scores, f"{self.called}_{self.score}")

    def check(self, task: Task) -> None:
        data = {"train": task.train, "central": task.test_set, "validation": task.validation}
        check_split_and_score(self, task, self.score, data[self.split], self.called)


class TrainScore(MeanScore):
    """`train_<score>`: the mean of a per-example score over all clients' training examples.

    Args:
        score: a score of the task such as `"accuracy"`.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.
    """

    split, called = "train", "train"


class CentralScore(MeanScore):
    """`test_<score>`: the mean of a per-example score over the central test set.

    By default all clients' test examples.

    Args:
        score: `"loss"`, or a score of the task such as `"accuracy"`.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.
    """

    split, called = "central", "test"


class ValidationScore(MeanScore):
    """`validation_<score>`: the mean of a per-example score over all clients' validation examples.

    Args:
        score: `"loss"`, or a score of the task such as `"accuracy"`.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.
    """

    split, called = "validation", "validation"


def check_split_and_score(
    observer: Observer, task: Task, score: str, data: Any, split: str = "test"
) -> None:
    """Refuses a task without the data or the score that an observer watches.

    Also one that states another direction of the score.
    """
    name = f"observe {_public_name(observer)}"
    if data is None or not (
        data.total if isinstance(data, Ragged) else len(next(iter(data.values()), ()))
    ):
        options = {
            "test": "test=[...], the examples of each client",
            "validation": "validation=[...]",
        }
        how = options["validation"] if split == "validation" else options["test"]
        how += ", or central={...}, a global set" if isinstance(observer, CentralScore) else ""
        got, needed = f"task {task.name!r} without {split} examples", f"tasks with {split} examples"
        raise InvalidInput.found(name, got, needed, f"Make the task with {how}.")
    if score != "loss" and score not in task.scores:
        raise UnknownName.among(name, score, ["loss", *task.scores])
    mode = getattr(observer, "mode", None)
    check_mode(f"{type(observer).__name__}(mode=...)", mode)
    if mode is not None:
        find_mode(name, score, mode, task.score_modes, "")


def _public_name(observer: Observer) -> str:
    """Returns the name by which users make an observer: `TestAccuracy` makes a `CentralScore`."""
    name = type(observer).__name__
    if isinstance(observer, CentralScore) and observer.score in ("accuracy", "loss"):
        return {"accuracy": "TestAccuracy", "loss": "TestLoss"}[observer.score]
    return name


def score_mode(observer: Any, scores: Mapping[str, Mode]) -> Mode | None:
    """Returns the direction of an observer's score; None if it is not known.

    The task's, or the one that the observer was told.
    """
    return scores.get(observer.score, observer.mode)


def score_modes(observer: Any, scores: Mapping[str, Mode], *names: str) -> dict[str, Mode]:
    """Returns the direction of an observer's score by its metrics' names, if it is known."""
    mode = score_mode(observer, scores)
    return {} if mode is None else dict.fromkeys(names, mode)


def TestAccuracy() -> CentralScore:
    """Observes `test_accuracy`, the accuracy on the central test set, in [0, 1]."""
    return CentralScore("accuracy")


def ValidationAccuracy() -> ValidationScore:
    """Observes `validation_accuracy`, on the clients' validation examples, in [0, 1]."""
    return ValidationScore("accuracy")


def ValidationLoss() -> ValidationScore:
    """Observes `validation_loss`, the mean loss on the clients' validation examples."""
    return ValidationScore("loss")


def TestLoss() -> CentralScore:
    """Observes `test_loss`, the mean loss on the central test set."""
    return CentralScore("loss")
