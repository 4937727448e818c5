"""The directions of the metrics that this package's observers give."""

import functools
from collections.abc import Iterable, Mapping

from fedax.core import InvalidInput
from fedax.core.directions import SCORES, Mode
from fedax.observe.accuracy import CentralScore, Objective, TrainLoss, TrainScore, ValidationScore
from fedax.observe.base import Observer
from fedax.observe.cohort_extremes import Extremes
from fedax.observe.consensus import Consensus, NodeAccuracy
from fedax.observe.consensus_square import ConsensusSquare
from fedax.observe.dissimilarity import Dissimilarity
from fedax.observe.fairness import ClientAccuracy
from fedax.observe.predictions import AUC, F1, CalibrationError
from fedax.observe.unseen_clients import Unseen


@functools.cache
def built_in_modes() -> Mapping[str, Mode]:
    """Returns the directions of what this package's observers give for losses and accuracies."""
    splits = ("central", "validation", "test", "train")
    observers: list[Observer] = [TrainLoss(), Objective(), Consensus(), ConsensusSquare()]
    observers += [Dissimilarity()]
    observers += [kind(split=split) for kind in (AUC, F1, CalibrationError) for split in splits]
    score_observers = (
        TrainScore,
        CentralScore,
        ValidationScore,
        Unseen,
        NodeAccuracy,
        Extremes,
        ClientAccuracy,
    )
    observers += [kind(score) for kind in score_observers for score in SCORES]
    observers += [ClientAccuracy(score, personal=True) for score in SCORES]
    modes: dict[str, Mode] = {
        name: mode for observer in observers for name, mode in observer.modes(SCORES).items()
    }
    # of `Optimum`, which needs a point, and of audits: the success of an attack
    return {**modes, "optimum_gap": "min", "distance": "min", "auc": "min", "auc_calibrated": "min"}


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
        hint = 'State it where the score is defined: mode="max" or mode="min".'
        raise InvalidInput.of("metric", metric, "a metric whose direction is known", hint)
    return mode == "max"
