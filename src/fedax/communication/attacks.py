"""Attacks of a part of the clients; `fedax.attacks` lists them."""

import inspect
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fedax.core import DataError, Task
from fedax.core.hyper import Scalar, check_declared, hyper, make
from fedax.errors import InvalidInput
from fedax.utils.arguments import checked_arguments, checked_call
from fedax.utils.norms import scale_of, unit
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
        if type(self) is not Attack:
            _check_overrides(type(self))

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


class Collusion(Attack):
    """Hostile clients send one vector, on which they agree when they know what others send.

    The engine applies it where the uploads of a cohort meet: to every vector of an upload, and to
    the model as a change of the vector that it started from. What a client knows of its cohort is
    what a simulation knows, so such attacks need a server and one of the engines in this process,
    and neither codecs, privacy nor an asynchronous server beside them.

    A new one overrides `agree`.

    Args:
        share, seed: as in `Attack`.
        knows: "honest", the vectors of the other clients of the cohort (an omniscient attack), or
            "hostile", what the hostile ones of the cohort would have sent.
    """

    knows: str = hyper(
        "honest", choices=("honest", "hostile"), doc="whose vectors the hostile clients know"
    )

    @abstractmethod
    def agree(
        self,
        changes: Float[Array, "capacity dim"],
        is_known: Bool[Array, "capacity"],
        clients: Int[Array, ""],
        hostile: Int[Array, ""],
    ) -> Float[Array, "dim"]:
        """Returns the change that all hostile clients of a cohort send.

        Args:
            changes: of all clients of the cohort; only those that are known may be used.
            is_known: which those are, at least one.
            clients: how many clients the cohort has.
            hostile: how many of them are hostile.
        """


class ALIE(Collusion):
    r"""A little is enough: hostile clients hide among honest ones and send $\mu - z \sigma$.

    Mean $\mu$ and deviation $\sigma$ are of every coordinate over the changes that they know.

    With n clients in a cohort, m of them hostile, the paper takes the largest z at which enough
    honest clients are farther from the mean to make a majority with the hostile ones:

    $$ z = \Phi^{-1} \Big( \frac{n - m - s}{n - m} \Big), \qquad
       s = \lfloor n / 2 + 1 \rfloor - m, $$

    with $\Phi$ the standard normal distribution; kept between 0 and 3 here. In the authors' code
    the attackers know their own changes alone, which is `knows="hostile"` (then a single one of a
    cohort does no harm); later code lets them know the honest ones.

    Args:
        share, seed: as in `Attack`.
        knows: as in `Collusion`.
        z: at least 0; 0, the default, is the paper's for the cohort at hand. The authors' code has
            1.5.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.ALIE(share=0.2, z=1.5))

    Source: Baruch, Baruch and Goldberg, A Little Is Enough: Circumventing Defenses For Distributed
    Learning, NeurIPS 2019, as in the authors' code (github.com/moranant/
    attacking_distributed_learning, malicious.py); z as in github.com/epfml/
    byzantine-robust-optimizer; the paper was not read.
    """

    z: Scalar = hyper(0.0, low=0.0, doc="distance from the mean in deviations; 0 is the paper's")

    def agree(
        self,
        changes: Float[Array, "capacity dim"],
        is_known: Bool[Array, "capacity"],
        clients: Int[Array, ""],
        hostile: Int[Array, ""],
    ) -> Float[Array, "dim"]:
        mean, deviation = _mean(changes, is_known), _deviation(changes, is_known)
        supporters, honest = clients // 2 + 1 - hostile, clients - hostile
        share = (honest - supporters) / jnp.maximum(honest, 1)
        # a majority of hostile clients needs no supporters, and its z would be infinite
        largest = jnp.clip(jax.scipy.special.ndtri(jnp.clip(share, 0, 1)), 0, 3)
        z = jnp.where(self.z > 0, self.z, largest).astype(changes.dtype)
        return mean - z * deviation


class IPM(Collusion):
    r"""Inner-product manipulation: hostile clients send $- \epsilon \mu$.

    $\mu$ is the mean of the changes that they know, so what is aggregated may point the other way.

    Args:
        share, seed: as in `Attack`.
        knows: as in `Collusion`.
        epsilon: $\epsilon$, above 0. Small ones pass for honest changes; large ones turn a mean.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.IPM(share=0.2, epsilon=0.5))

    Source: Xie, Koyejo and Gupta, Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product
    Manipulation, UAI 2019, as in github.com/epfml/byzantine-robust-optimizer
    (codes/attacks/xie.py); the paper was not read.
    """

    epsilon: Scalar = hyper(
        0.5, low=0.0, open_low=True, doc="length of what is sent, in lengths of the mean"
    )

    def agree(
        self,
        changes: Float[Array, "capacity dim"],
        is_known: Bool[Array, "capacity"],
        clients: Int[Array, ""],
        hostile: Int[Array, ""],
    ) -> Float[Array, "dim"]:
        return -self.epsilon * _mean(changes, is_known)


class _Perturbation(Collusion):
    r"""Hostile clients send $\mu + \gamma p$ with the largest $\gamma$ at which it passes."""

    direction: str = hyper(
        "std", choices=("std", "unit", "sign"), doc="what the mean of the changes is moved along"
    )

    def agree(
        self,
        changes: Float[Array, "capacity dim"],
        is_known: Bool[Array, "capacity"],
        clients: Int[Array, ""],
        hostile: Int[Array, ""],
    ) -> Float[Array, "dim"]:
        scale = scale_of(jnp.where(is_known[:, None], changes, 0))
        # squares of large and small changes fit
        scaled = jnp.where(is_known[:, None], changes / scale, 0)
        mean = _mean(scaled, is_known)
        if self.direction == "std":
            p = -_deviation(scaled, is_known)
        else:
            p = -unit(mean) if self.direction == "unit" else -jnp.sign(mean)
        # squared distances of all pairs (capacity, capacity), row by row
        squares = jax.lax.map(lambda x: ((scaled - x[None]) ** 2).sum(1), scaled)
        squares = jnp.where(is_known[None] & is_known[:, None], squares, 0)
        return scale * (mean + self.largest_step(scaled, is_known, mean, p, squares) * p)

    @abstractmethod
    def largest_step(
        self,
        changes: Float[Array, "capacity dim"],
        is_known: Bool[Array, "capacity"],
        mean: Float[Array, "dim"],
        p: Float[Array, "dim"],
        squares: Float[Array, "capacity capacity"],
    ) -> Float[Array, ""]:
        r"""Returns $\gamma$, at least 0."""


class MinMax(_Perturbation):
    r"""Hostile clients send $\mu + \gamma p$, as far from others as these are from each other.

    It is no farther from any change $x_i$ that they know than two of these are from each other:

    $$ \gamma = \max \Big\{ \gamma : \max_i \lVert \mu + \gamma p - x_i \rVert \le
       \max_{i, j} \lVert x_i - x_j \rVert \Big\}, $$

    with the mean $\mu$. The authors' code approaches $\gamma$ by halving; here it is the least of
    the roots of a quadratic for each i.

    Args:
        share, seed: as in `Attack`.
        knows: as in `Collusion`.
        direction: p: "std", the opposite of the coordinates' deviations; "unit", of the mean
            divided by its length; "sign", of its signs.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.MinMax(share=0.2, direction="unit"))

    Source: Shejwalkar and Houmansadr, Manipulating the Byzantine: Optimizing Model Poisoning
    Attacks and Defenses for Federated Learning, NDSS 2021 (Min-Max), as in the authors' code
    (github.com/vrt1shjwlkr/NDSS21-Model-Poisoning); the paper was not read.
    """

    def largest_step(
        self,
        changes: Float[Array, "capacity dim"],
        is_known: Bool[Array, "capacity"],
        mean: Float[Array, "dim"],
        p: Float[Array, "dim"],
        squares: Float[Array, "capacity capacity"],
    ) -> Float[Array, ""]:
        # |mean - x_i + g p|^2 = |p|^2 g^2 + 2 b_i g + d_i, at most the largest square
        offsets = mean[None] - changes
        a, b, d = p @ p, offsets @ p, (offsets**2).sum(1)
        room = jnp.maximum(squares.max() - d, 0)
        # this form of the root does not cancel for b > 0; for b <= 0 the other one does not
        root = jnp.sqrt(b**2 + a * room)
        sum_, a = jnp.where(b > 0, root + b, 1), jnp.where(a > 0, a, 1)
        steps = jnp.where(b > 0, room / sum_, (root - b) / a)
        return jnp.where(is_known, steps, jnp.inf).min()


class MinSum(_Perturbation):
    r"""Hostile clients send $\mu + \gamma p$, in all as far from others as one of these.

    Its sum of squared distances to the changes $x_i$ that they know is no larger than that of one
    of these:

    $$ \gamma = \max \Big\{ \gamma : \sum_i \lVert \mu + \gamma p - x_i \rVert^2 \le
       \max_i \sum_j \lVert x_i - x_j \rVert^2 \Big\}, $$

    with the mean $\mu$. The authors' code approaches $\gamma$ by halving; here it is a root.

    Args:
        share, seed: as in `Attack`.
        knows: as in `Collusion`.
        direction: as in `MinMax`.
        form: "as_written", or "as_released", with the smallest sum, $\min_i$, on the right.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.MinSum(share=0.2))

    Source: as `MinMax` (Min-Sum).
    """

    form: str = hyper(
        "as_written",
        choices=("as_written", "as_released"),
        doc="whether the largest or the smallest sum of a known change is the bound",
    )

    def largest_step(
        self,
        changes: Float[Array, "capacity dim"],
        is_known: Bool[Array, "capacity"],
        mean: Float[Array, "dim"],
        p: Float[Array, "dim"],
        squares: Float[Array, "capacity capacity"],
    ) -> Float[Array, ""]:
        count, sums = is_known.sum(dtype=changes.dtype), squares.sum(1)
        if self.form == "as_written":
            bound = sums.max()
        else:
            bound = jnp.where(is_known, sums, jnp.inf).min()
        # around their mean the squares add up to half of all pairs' over the count
        room = jnp.maximum(bound - sums.sum() / (2 * count), 0)
        square = count * (p @ p)
        return jnp.sqrt(room / jnp.where(square > 0, square, 1))


def _check_overrides(kind: type[Attack]) -> None:
    """Refuses an attack that would do nothing, or whose method takes other arguments."""
    hooks = {"corrupt": ("v", "near", "key"), "poison": ("task", "first", "clients")}
    overridden = [name for name in hooks if getattr(kind, name) is not getattr(Attack, name)]
    if not overridden and not issubclass(kind, Collusion):
        methods = ", ".join(name for name in vars(kind) if name[0] != "_") or "none"
        calls = " or ".join(f"{name}({', '.join(args)})" for name, args in hooks.items())
        raise InvalidInput.found(
            kind.__name__,
            f"an attack that does nothing, with the methods {methods}",
            f"one that overrides {calls}",
        )
    for name in overridden:
        signature = inspect.signature(getattr(kind, name))
        try:
            signature.bind(None, *hooks[name])
        except TypeError:
            arguments = ", ".join(("self", *hooks[name]))
            raise InvalidInput.found(
                f"{kind.__name__}.{name}", f"the arguments {signature}", f"({arguments})"
            ) from None


def _mean(
    rows: Float[Array, "capacity dim"], is_counted: Bool[Array, "capacity"]
) -> Float[Array, "dim"]:
    """Returns the mean of the rows that count, 0 if none does."""
    count = jnp.maximum(is_counted.sum(dtype=rows.dtype), 1)
    return jnp.where(is_counted[:, None], rows / count, 0).sum(0)


def _deviation(
    rows: Float[Array, "capacity dim"], is_counted: Bool[Array, "capacity"]
) -> Float[Array, "dim"]:
    """Returns the standard deviation of every coordinate over the rows that count, divided by their
    number.
    """
    offsets = rows - _mean(rows, is_counted)[None]
    scale = scale_of(jnp.where(is_counted[:, None], offsets, 0))
    return scale * jnp.sqrt(_mean((offsets / scale) ** 2, is_counted))


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


ATTACKS: dict[str, type[Attack]] = {
    "sign_flip": SignFlip,
    "noise": Noise,
    "label_flip": LabelFlip,
    "alie": ALIE,
    "ipm": IPM,
    "min_max": MinMax,
    "min_sum": MinSum,
}
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
