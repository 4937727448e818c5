"""Attacks that guess from a model's answers whether it was trained on an example."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fedax.core import InvalidInput


@dataclass(frozen=True)
class Attack:
    """The attack model: one hidden layer on the largest class probabilities in falling order,
    trained by Adam.

    Args:
        top: how many of the largest probabilities it sees, at least 1; all of them if there are
            fewer classes.
        hidden: units of the hidden layer, at least 1.
        epochs: passes over the shadow model's answers, at least 1.
        learning_rate: of Adam, above 0.

    Raises:
        InvalidInput: an argument out of range.

    Source: Salem et al., ML-Leaks, NDSS 2019, attack 1, as in Sun, Li and Wang, Decentralized
    Federated Averaging, 2021, sec. 6, which names 64 units and the top three (two for two classes),
    and neither optimizer nor epochs.

    >>> Attack().hidden
    64
    """

    top: int = 3
    hidden: int = 64
    epochs: int = 50
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("top", "hidden", "epochs"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidInput.of(f"audit.{name}", value, "whole numbers >= 1")
        if not 0 < self.learning_rate < float("inf"):
            raise InvalidInput.of("audit.learning_rate", self.learning_rate, "finite numbers > 0")


@dataclass(frozen=True)
class Curve:
    """A receiver operating characteristic: members found against others accused, for every
    threshold.

    Attributes:
        false: false positive rates, from 0 to 1.
        true: true positive rates.
        auc: area under it; 0.5 is guessing.
    """

    false: np.ndarray
    true: np.ndarray
    auc: float

    def true_at(self, false: float) -> float:
        """Returns the share of members found while at most `false` of the others are accused."""
        return float(self.true[self.false <= false].max())


def curve(members: Float[np.ndarray, "some"], others: Float[np.ndarray, "more"]) -> Curve:
    """Returns the curve of an attack's scores, which are high for examples it takes for members.

    >>> import numpy as np
    >>> curve(np.array([0.9, 0.4]), np.array([0.5, 0.1])).auc
    0.75
    """
    # takes a second to import, so only on demand
    from sklearn.metrics import roc_auc_score, roc_curve

    truth, scores = (
        np.repeat([1, 0], [len(members), len(others)]),
        np.concatenate([members, others]),
    )
    # without the thresholds on a straight line, `true_at` would miss members where scores are equal
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    return Curve(false, true, float(roc_auc_score(truth, scores)))


class ShadowAttack:
    """A classifier of probability vectors into members and others, learned on a shadow model whose
    members are known.

    Args:
        members: the shadow model's class probabilities of examples that it was trained on.
        others: the same of examples that it never saw.
        seed: of the classifier.
        attack: its shape and training.

    Source: as `Attack`.
    """

    def __init__(
        self,
        members: Float[np.ndarray, "some classes"],
        others: Float[np.ndarray, "more classes"],
        seed: int = 0,
        attack: Attack | None = None,
    ) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        self.attack = settings = attack or Attack()
        options = {
            "learning_rate_init": settings.learning_rate,
            # of Adam, `max_iter` counts passes over the examples
            "max_iter": settings.epochs,
            "random_state": seed,
        }
        self._classifier: Any = make_pipeline(
            StandardScaler(), MLPClassifier((settings.hidden,), **options)
        )
        # members first, as the labels of the next lines have them
        features = np.concatenate([largest(members, settings.top), largest(others, settings.top)])
        with warnings.catch_warnings():
            # the number of epochs is part of the attack
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._classifier.fit(features, np.repeat([1, 0], [len(members), len(others)]))

    def scores(self, probabilities: Float[np.ndarray, "some classes"]) -> Float[np.ndarray, "some"]:
        """Returns the score of each example as a member of the training set, in [0, 1]."""
        return self._classifier.predict_proba(largest(probabilities, self.attack.top))[:, 1]


def largest(
    probabilities: Float[np.ndarray, "some classes"], top: int = 3
) -> Float[np.ndarray, "some top"]:
    """Returns the largest probabilities of each row in falling order.

    >>> import numpy as np
    >>> largest(np.array([[0.1, 0.2, 0.3, 0.4]])).tolist()
    [[0.4, 0.3, 0.2]]
    """
    # sorted by the negative, because NumPy sorts upwards
    return -np.sort(-probabilities, axis=1)[:, : min(top, probabilities.shape[1])]
