"""Attacks on what hostile clients learn from."""

import equinox as eqx
import jax
import numpy as np

from fedax.communication.attacks.base import Attack
from fedax.core import DataError, Task
from fedax.core.hyper import hyper
from fedax.errors import InvalidInput


class LabelFlip(Attack):
    r"""Hostile clients learn, honestly, from training labels $C - 1 - y$ in place of y.

    Test examples stay as they are.

    Losses on training examples are then those on the flipped ones.

    Args:
        share, seed: as in `Attack`.
        classes: C, at least 2; with 0, the default, the number of classes that the task predicts,
            or one more than its largest label if it has no predictions.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.LabelFlip(share=0.2, classes=10))

    Source: Fang, Cao, Jia and Gong, Local Model Poisoning Attacks to Byzantine-Robust Federated
    Learning, USENIX Security 2020, Sec. 5 (label flipping attack).
    """

    classes: int = hyper(0, low=0, doc="number of classes; 0 is that of the task")

    def poison(self, task: Task, first: int, clients: int) -> Task:
        labels, offsets = task.train.arrays.get("y"), np.asarray(task.train.offsets)
        if labels is None or np.asarray(labels).dtype.kind not in "iu" or np.ndim(labels) != 1:
            raise InvalidInput.found(
                "LabelFlip",
                f"a task with the arrays {sorted(task.train.arrays)}",
                "one with whole labels 'y'",
            )
        # a copy, because other runs may use the same examples
        labels = np.array(labels)
        classes = self._count_classes(task, labels, clients)
        # k counts in the population, rows in the examples at hand, which begin with client `first`
        for k in self.members(clients):
            if first <= k < first + task.train.clients:
                rows = slice(offsets[k - first], offsets[k - first + 1])
                labels[rows] = classes - 1 - labels[rows]
        return eqx.tree_at(lambda t: t.train.arrays["y"], task, labels)

    def _count_classes(self, task: Task, labels: np.ndarray, clients: int) -> int:
        """Returns the number of classes.

        Refuses one by which a label would become none of the task's.
        """
        field, needed = "LabelFlip(classes=...)", int(labels.max()) + 1
        predicted_classes, has_all_clients = (
            _count_predicted_classes(task),
            task.train.clients == clients,
        )
        if predicted_classes is None and not self.classes and not has_all_clients:
            hint = "One client does not know the labels of the others."
            raise InvalidInput.of(
                field, self.classes, "the number of classes, for a task without predictions", hint
            )
        # the classes there are; labels tell them only if they are those of all clients
        largest_allowed = (
            predicted_classes
            if predicted_classes is not None
            else _largest_label(task) + 1
            if has_all_clients
            else None
        )
        classes = self.classes or largest_allowed or needed
        if classes < max(needed, 2):
            raise DataError.of(
                field, classes, f"at least {max(needed, 2)}, one more than the largest label"
            )
        if largest_allowed is not None and classes > largest_allowed:
            raise DataError.of(
                field,
                classes,
                f"at most {largest_allowed}, the classes of the task",
                "Leave it out to have these.",
            )
        return classes


def _count_predicted_classes(task: Task) -> int | None:
    """Returns the number of classes that a task predicts; None if it predicts no probabilities."""
    if (predictions := task.predictions) is None:
        return None
    # one example, by shape alone: nothing is computed
    arrays = {
        name: jax.ShapeDtypeStruct((1, *values.shape[1:]), values.dtype)
        for name, values in task.train.arrays.items()
    }
    outputs = jax.eval_shape(
        lambda key, rows: predictions(task.start(key), rows, None), jax.random.key(0), arrays
    )
    return outputs.shape[1] if getattr(outputs, "ndim", 0) == 2 else None


def _largest_label(task: Task) -> int:
    """Returns the largest label among all examples of a task."""
    splits = [
        split.arrays for split in (task.train, task.test, task.validation) if split is not None
    ]
    splits += [] if task.central is None else [task.central]
    return max(int(np.max(split["y"], initial=0)) for split in splits)
