"""The directions of the metrics that this package's observers give."""

import functools
from collections.abc import Iterable, Mapping
from typing import get_args

from fedax.core import InvalidInput
from fedax.core.directions import SCORES, Mode
from fedax.observe import heterogeneity, predictions, scores
from fedax.observe.base import Observer, Split


@functools.cache
def built_in_modes() -> Mapping[str, Mode]:
    """Returns the directions of what this package's observers give for losses and accuracies."""
    observers: list[Observer] = [scores.TrainLoss(), scores.Objective(), heterogeneity.Consensus()]
    observers += [heterogeneity.ConsensusSquare(), heterogeneity.Dissimilarity()]
    of_splits = (predictions.AUC, predictions.F1, predictions.CalibrationError)
    for split in get_args(Split):
        observers += [kind(split=split) for kind in of_splits]
    of_scores = (
        scores.TrainScore,
        scores.CentralScore,
        scores.ValidationScore,
        scores.Unseen,
        scores.NodeAccuracy,
        scores.Extremes,
        scores.ClientAccuracy,
    )
    for score in SCORES:
        observers += [kind(score) for kind in of_scores]
        observers += [
            scores.ClientAccuracy(score, personal=True, split=split)
            for split in ("test", "validation")
        ]
    modes: dict[str, Mode] = {}
    for observer in observers:
        modes |= observer.modes(SCORES)
    # of `Optimum`, which needs a point, and of audits: the success of an attack
    for name in ("optimum_gap", "distance", "auc", "auc_calibrated"):
        modes[name] = "min"
    return modes


def mode_of(metric: str, stated: Iterable[Mapping[str, Mode] | None] = ()) -> Mode | None:
    """Returns the direction of a metric; None if unknown.

    The one that its records state, otherwise the built-in observers'.

    >>> (
    ...     mode_of("client_accuracy_worst_tenth"),
    ...     mode_of("test_mcc"),
    ...     mode_of("test_mcc", [{"test_mcc": "max"}]),
    ... )
    ('max', None, 'max')

    Args:
        metric: its name.
        stated: directions that records state.

    Raises:
        InvalidInput: records that contradict each other.
    """
    directions: set[Mode] = {modes[metric] for modes in stated if modes and metric in modes}
    if len(directions) > 1:
        hint = "Runs in which it has another meaning cannot stand in one table."
        raise InvalidInput.found(
            f"direction of {metric}", "min and max in different runs", "one of them", hint
        )
    return directions.pop() if directions else built_in_modes().get(metric)


def is_higher_better(metric: str, stated: Iterable[Mapping[str, Mode] | None] = ()) -> bool:
    """Returns whether more of a metric is better.

    Raises:
        InvalidInput: its direction is not known.
    """
    mode = mode_of(metric, stated)
    if mode is None:
        hint = 'State it, "max" or "min": modes={"mae": "min"} of a task, mode= of an observer.'
        raise InvalidInput.of("metric", metric, "a metric whose direction is known", hint)
    return mode == "max"
