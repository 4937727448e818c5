"""Attacks that guess from a model's answers whether it was trained on an example."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

TOP = 3
"""How many of the largest probabilities the shadow attack sees."""
HIDDEN, EPOCHS, RATE = 64, 50, 1e-3
"""Hidden units, epochs and learning rate (Adam) of the attack model; the paper names only the first."""


@dataclass(frozen=True)
class Curve:
    """A receiver operating characteristic: members found against others accused, for every threshold.

    Attributes:
        false: false positive rates, from 0 to 1.
        true: true positive rates.
        auc: area under it; 0.5 is guessing.
    """

    false: np.ndarray
    true: np.ndarray
    auc: float

    def true_at(self, false: float) -> float:
        """The share of members found while at most `false` of the others are accused."""
        return float(self.true[self.false <= false].max())


def curve(members: Float[np.ndarray, "some"], others: Float[np.ndarray, "more"]) -> Curve:
    """The curve of an attack's scores, which are high for examples it takes for members.

    >>> import numpy as np
    >>> curve(np.array([0.9, 0.4]), np.array([0.5, 0.1])).auc
    0.75
    """
    from sklearn.metrics import roc_auc_score, roc_curve  # takes a second to import, so only on demand

    truth, scores = np.repeat([1, 0], [len(members), len(others)]), np.concatenate([members, others])
    false, true, _ = roc_curve(truth, scores)
    return Curve(false, true, float(roc_auc_score(truth, scores)))


class ShadowAttack:
    """A classifier of probability vectors into members and others, learned on a shadow model whose members are known.

    One hidden layer of 64 units on the three largest probabilities in falling order (two if there are but two classes).

    Args:
        members: the shadow model's class probabilities of examples that it was trained on.
        others: the same of examples that it never saw.
        seed: of the classifier.

    Source: Salem et al., ML-Leaks, NDSS 2019, attack 1, as in Sun, Li and Wang, Decentralized Federated Averaging, 2021, sec. 6.
    """

    def __init__(
        self, members: Float[np.ndarray, "some classes"], others: Float[np.ndarray, "more classes"], seed: int = 0
    ) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        network = MLPClassifier((HIDDEN,), learning_rate_init=RATE, max_iter=EPOCHS, random_state=seed)
        self._classifier: Any = make_pipeline(StandardScaler(), network)
        features = np.concatenate([largest(members), largest(others)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is part of the attack
            self._classifier.fit(features, np.repeat([1, 0], [len(members), len(others)]))

    def scores(self, probabilities: Float[np.ndarray, "some classes"]) -> Float[np.ndarray, "some"]:
        """How much each example looks like a member, in [0, 1]."""
        return self._classifier.predict_proba(largest(probabilities))[:, 1]


def largest(probabilities: Float[np.ndarray, "some classes"]) -> Float[np.ndarray, "some top"]:
    """The largest probabilities of each row in falling order.

    >>> import numpy as np
    >>> largest(np.array([[0.1, 0.2, 0.3, 0.4]])).tolist()
    [[0.4, 0.3, 0.2]]
    """
    return -np.sort(-probabilities, axis=1)[:, : min(TOP, probabilities.shape[1])]
