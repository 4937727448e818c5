"""Attacks of a part of the clients; `fedax.attacks` lists them."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.core import DataError, Task
from fedax.core.hyper import Scalar, check_declared, hyper, make
from fedax.errors import InvalidInput
from fedax.utils.arguments import checked_arguments, checked_call
from fedax.utils.random import MOST_SEED
from fedax.utils.shares import whole_part


@checked_arguments
class Attack(eqx.Module):
    """A part of the clients does harm, the same in every round.

    See `fedax.attacks` for the known ways.

    A new attack overrides `corrupt`, or `poison`.

    Args:
        share: of all clients, rounded down; in [0, 1].
        seed: of the draw of these clients, which depends on nothing else.
    """

    share: float = hyper(
        0.2, static=True, low=0.0, high=1.0, doc="share of all clients that are hostile"
    )
    seed: int = hyper(0, low=0, high=MOST_SEED, doc="seed of the draw of the hostile clients")

    def __check_init__(self) -> None:
        check_declared(self)

    def members(self, clients: int) -> np.ndarray:
        """Returns the numbers of the hostile ones among so many clients, ascending: the whole part
        of share times clients.

        >>> Attack(share=0.3).members(10).tolist()
        [2, 4, 6]
        """
        # the head of a permutation: with the same seed a larger share contains the smaller one
        count = whole_part(self.share, clients)
        return np.sort(np.random.default_rng(self.seed).permutation(clients)[:count]).astype(
            np.int32
        )

    def check_share(self, clients: int) -> None:
        """Refuses a share above 0 that is not even one client."""
        if self.share and not len(self.members(clients)):
            allowed = f"0, or at least {1 / clients:.3g}, which is one of {clients} clients"
            raise InvalidInput.of(f"{type(self).__name__}(share=...)", self.share, allowed)

    def corrupt(
        self, v: Float[Array, "dim"], near: Float[Array, "dim"], key: Key[Array, ""]
    ) -> Float[Array, "dim"]:
        """Returns the vector that a hostile client sends instead of v.

        `near` is the vector that v is a change of, 0 if there is none.
        """
        return v

    def poison(self, task: Task, first: int, clients: int) -> Task:
        """Returns the task with the training examples of hostile clients poisoned.

        Args:
            task: with the examples of client `first` on: everybody's, or one peer's.
            first: the number of its first client.
            clients: the size of the population.
        """
        return task


class SignFlip(Attack):
    r"""Hostile clients send the opposite of their change, $a - s (v - a)$ in place of v, with a the
    vector they started at.

    Vectors that are no changes of a known one, such as gradients, become $-s v$.

    Args:
        share, seed: as in `Attack`.
        scale: s, above 0.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.SignFlip(share=0.2, scale=4.0))

    Source: Li, Xu, Chen, Giannakis and Ling, RSA: Byzantine-Robust Stochastic Aggregation Methods
    for Distributed Learning from Heterogeneous Datasets, AAAI 2019, Sec. 5 (sign-flipping attack, s
    = 4).
    """

    scale: Scalar = hyper(
        1.0, low=0.0, open_low=True, doc="length of the wrong step in lengths of the right one"
    )

    def corrupt(
        self, v: Float[Array, "dim"], near: Float[Array, "dim"], key: Key[Array, ""]
    ) -> Float[Array, "dim"]:
        return near - self.scale * (v - near)


class Noise(Attack):
    r"""Hostile clients send $a + \sigma \xi$ in place of v, with standard normal $\xi$ and a the
    vector they started at, or 0.

    Args:
        share, seed: as in `Attack`.
        std: $\sigma$, above 0; 200 for gradients in the source.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.Noise(share=0.2, std=10.0))

    Source: Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries, NIPS
    2017, Sec. 6 (Gaussian attack).
    """

    std: Scalar = hyper(1.0, low=0.0, open_low=True, doc="standard deviation of the noise")

    def corrupt(
        self, v: Float[Array, "dim"], near: Float[Array, "dim"], key: Key[Array, ""]
    ) -> Float[Array, "dim"]:
        return near + self.std * jax.random.normal(key, v.shape, v.dtype)


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
    splits += [] if task.holdout is None else [task.holdout]
    return max(int(np.max(split["y"], initial=0)) for split in splits)


ATTACKS: dict[str, type[Attack]] = {"sign_flip": SignFlip, "noise": Noise, "label_flip": LabelFlip}
"""Attacks by their name in experiment files."""


@checked_call
def make_attack(name: str, **options: Any) -> Attack:
    """Makes an attack by name.

    >>> make_attack("sign_flip", share=0.1).share
    0.1

    Raises:
        UnknownName: no such attack or option.
        InvalidInput: an option out of its range.
    """
    return make("attack", ATTACKS, name, options)
