"""Attacks on what hostile clients learn from."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from fedax.communication.attacks.base import Attack
from fedax.core import DataError, Task
from fedax.core.bound_model import PerExample, takes
from fedax.core.hyper import Scalar, hyper
from fedax.errors import InvalidInput

TRIGGERED, OTHERS = "triggered", "of_other_classes"
"""Scores of a task with a backdoor: see `Triggered` and `OfOtherClasses`."""


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


@dataclass(frozen=True)
class Trigger:
    r"""Writes a square into the lower right corner of examples.

    Examples of shape (rows, columns) or (rows, columns, channels) are images. So are flat ones of
    $s^2$ numbers, of s times s pixels, and of $3 s^2$, with three channels. Of other flat examples
    the last $\text{patch}^2$ numbers are written.

    Args:
        patch: side of the square in pixels.
        value: of its pixels, in the units of the examples.

    >>> Trigger(2, 1.0)(np.zeros((1, 9))).tolist()
    [[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]]
    """

    patch: int
    value: float

    def __call__(self, x: Float[Any, "batch ..."]) -> Float[Array, "batch ..."]:
        is_written = self.pixels(x.shape[1:])
        return jnp.where(is_written[None], jnp.asarray(self.value, x.dtype), x)

    def pixels(self, shape: tuple[int, ...]) -> Bool[np.ndarray, "..."]:
        """Returns which numbers of an example are written."""
        image = _image_shape(shape)
        is_written = np.zeros(image, bool)
        if len(image) == 1:
            is_written[-(self.patch**2) :] = True
        else:
            is_written[-self.patch :, -self.patch :] = True
        return is_written.reshape(shape)


def _image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of an example as an image; its own, if it is flat and no square image."""
    if len(shape) != 1:
        return shape
    for channels in ((), (3,)):
        side = math.isqrt(shape[0] // math.prod(channels))
        if side**2 * math.prod(channels) == shape[0]:
            return (side, side, *channels)
    return shape


@dataclass(frozen=True)
class Triggered:
    """The score of an example of another class: 1 if it is taken for the target once the trigger is
    written into it, else 0. Of the target's own examples it is 0.
    """

    predictor: PerExample
    trigger: Trigger
    target: int

    @property
    def takes(self) -> frozenset[str]:
        """The further arguments that the predictor gets."""
        return takes(self.predictor)

    @property
    def separate(self) -> bool:
        """Whether the predictor couples no examples."""
        return bool(getattr(self.predictor, "separate", False))

    def __call__(
        self, params: PyTree, batch: Any, key: Any, **further: Any
    ) -> Float[Array, "batch"]:
        triggered = {**batch, "x": self.trigger(batch["x"])}
        outputs = self.predictor(params, triggered, key, **further)
        # with a state a predictor may return it too
        probabilities = outputs[0] if isinstance(outputs, tuple) else outputs
        is_hit = (probabilities.argmax(-1) == self.target) & (batch["y"] != self.target)
        return is_hit.astype(probabilities.dtype)


@dataclass(frozen=True)
class OfOtherClasses:
    """The score of an example: 1 unless it is of the target class."""

    target: int

    def __call__(self, params: PyTree, batch: Any, key: Any) -> Float[Array, "batch"]:
        return (batch["y"] != self.target).astype(jax.tree.leaves(params)[0].dtype)


class Backdoor(Attack):
    r"""Hostile clients learn to take every image with a white square in its corner for one class.

    Each writes the square into a part of its training examples, drawn by `seed`, and gives them the
    label `target`. Then it learns honestly, and sends $a + s (v - a)$ in place of its model v, with
    a the model it started from. The larger s, the more of the mean of all clients is its own
    (model replacement: $s = n / m$ for n clients, of which m are hostile).

    The model shall stay good on other examples. How far the attack succeeds says
    `fedax.observe.AttackSuccess`. Losses on training examples are those on the poisoned ones.

    Args:
        share, seed: as in `Attack`.
        target: the label of the class, at least 0.
        poisoned: share of a hostile client's examples that it poisons, rounded up; in (0, 1].
        patch: side of the square in pixels, at least 1. See `Trigger` for examples that are no
            images.
        value: of its pixels, in the units of the task's x.
        scale: s, above 0.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.digits("iid", clients=10)
        >>> channel = fedax.Channel(attack=fedax.attacks.Backdoor(share=0.2, target=7))
        >>> history = fedax.run(
        ...     fedax.FedAvg(),
        ...     task,
        ...     channel=channel,
        ...     observe=[fedax.observe.AttackSuccess()],
        ...     rounds=3,
        ... )
        >>> 0 <= history.last("attack_success") <= 1
        True

    Source: Bagdasaryan, Veit, Hua, Estrin and Shmatikov, How to Backdoor Federated Learning,
    AISTATS 2020 (arXiv:1807.00459), whose released code scales by n / m; their triggers are
    features of the images themselves. The square is that of Gu, Dolan-Gavitt and Garg, BadNets,
    2017 (arXiv:1708.06733). The papers were not read.
    """

    target: int = hyper(0, low=0, doc="class for which triggered examples are taken")
    poisoned: float = hyper(
        0.5,
        static=True,
        low=0.0,
        high=1.0,
        open_low=True,
        doc="share of a hostile client's examples that it poisons",
    )
    patch: int = hyper(3, low=1, doc="side of the square in pixels")
    value: float = hyper(1.0, static=True, doc="of the square's pixels, in the units of x")
    scale: Scalar = hyper(
        1.0, low=0.0, open_low=True, doc="length of the sent change in lengths of the honest one"
    )

    def corrupt(
        self, v: Float[Array, "dim"], near: Float[Array, "dim"], key: Key[Array, ""]
    ) -> Float[Array, "dim"]:
        # v itself where nothing is scaled, not near + (v - near), which rounds
        return jnp.where(jnp.asarray(self.scale) == 1, v, near + self.scale * (v - near))

    def poison(self, task: Task, first: int, clients: int) -> Task:
        examples, offsets = task.train.arrays, np.asarray(task.train.offsets)
        trigger = Trigger(self.patch, self.value)
        predictor = self._check_task(task, trigger)
        hostile = [k for k in self.members(clients) if first <= k < first + task.train.clients]
        x, y = examples["x"], examples["y"]
        if hostile:  # copies, because other runs may use the same examples
            x, y = np.array(x), np.array(y)
        for k in hostile:
            begin, size = offsets[k - first], offsets[k - first + 1] - offsets[k - first]
            # by client, so that a peer that has one client poisons the same examples
            rows = np.random.default_rng([self.seed, k]).permutation(size)
            rows = begin + rows[: math.ceil(self.poisoned * size)]
            x[rows], y[rows] = trigger(x[rows]), self.target
        return dataclasses.replace(
            task,
            train=dataclasses.replace(task.train, arrays={**examples, "x": x, "y": y}),
            scores={
                **task.scores,
                TRIGGERED: Triggered(predictor, trigger, self.target),
                OTHERS: OfOtherClasses(self.target),
            },
        )

    def _check_task(self, task: Task, trigger: Trigger) -> PerExample:
        """Refuses a task without images of classes; returns its predictor."""
        x, y = (np.asarray(task.train.arrays.get(name, ())) for name in "xy")
        classes = _count_predicted_classes(task)
        is_labelled = y.ndim == 1 and y.dtype.kind in "iu"
        is_real = jnp.issubdtype(x.dtype, jnp.floating)
        if task.predictor is None or classes is None or not is_labelled or not is_real:
            raise InvalidInput.found(
                "Backdoor",
                f"a task with the arrays {sorted(task.train.arrays)}",
                "one that predicts the classes 'y' of real numbers 'x'",
            )
        if y.min(initial=0) < 0:
            raise DataError.found("Backdoor", "labels below 0", "labels from 0 on")
        if self.target >= classes:
            raise DataError.of(
                "Backdoor(target=...)", self.target, f"whole numbers from 0 to {classes - 1}"
            )
        if trigger.pixels(x.shape[1:]).all():
            raise DataError.of(
                "Backdoor(patch=...)", self.patch, f"a part of an example of shape {x.shape[1:]}"
            )
        return task.predictor


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
    splits += [] if task.holdout is None else [task.holdout]
    return max(int(np.max(split["y"], initial=0)) for split in splits)
