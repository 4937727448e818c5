"""Attacks on what hostile clients learn from."""

import equinox as eqx
import numpy as np

from fedax.communication.attacks.base import Attack
from fedax.core import DataError, InvalidInput, Task
from fedax.core.hyper import hyper
from fedax.examples.integer_ranges import find_wrong_label


class LabelFlip(Attack):
    r"""Hostile clients learn, honestly, from training labels $C - 1 - y$ in place of y.

    Test examples stay as they are.

    Losses on training examples are then those on the flipped ones.

    Args:
        share, seed: as in `Attack`.
        classes: C, for data that do not say it (`FederatedData.classes`).

    Raises:
        InvalidInput: a task without whole labels.
        DataError: another number than that of the data, or labels that are not from 0 to C - 1.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.LabelFlip(share=0.2, classes=10))

    Source: Fang, Cao, Jia and Gong, Local Model Poisoning Attacks to Byzantine-Robust Federated
    Learning, USENIX Security 2020, Sec. 5 (label flipping attack).
    """

    classes: int = hyper(0, low=0, doc="number of classes; 0 is that of the data")

    def poison(self, task: Task, first: int, clients: int) -> Task:
        labels = task.train.arrays.get("y")
        offsets = task.train.offsets
        if labels is None or np.asarray(labels).dtype.kind not in "iu" or np.ndim(labels) != 1:
            got = f"a task with the arrays {sorted(task.train.arrays)}"
            raise InvalidInput.found("LabelFlip", got, "one with whole labels 'y'")
        # a copy, because other runs may use the same examples
        labels = np.array(labels)
        classes = task.data.classes or self.classes
        if self.classes not in (0, classes) or find_wrong_label(labels, classes) is not None:
            allowed = "the number of classes, labelled from 0 on; 0 for data that say it themselves"
            raise DataError.of("LabelFlip(classes=...)", self.classes, allowed)
        # k counts in the population, rows in the examples at hand, which begin with client `first`
        for k in self.members(clients):
            if first <= k < first + task.train.clients:
                rows = slice(offsets[k - first], offsets[k - first + 1])
                labels[rows] = classes - 1 - labels[rows]
        return eqx.tree_at(lambda t: t.train.arrays["y"], task, labels)
