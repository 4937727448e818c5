"""Attacks of clients that agree on what they send."""

from abc import abstractmethod

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedax.communication.attacks.base import Attack
from fedax.core.hyper import Scalar, hyper
from fedax.utils.norms import scale_of, unit


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
        mean = _mean(changes, is_known)
        deviation = _deviation(changes, is_known)
        supporters = clients // 2 + 1 - hostile
        honest = clients - hostile
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


class MinMax(Collusion):
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
        largest = jnp.where(is_known[None] & is_known[:, None], squares, 0).max()
        # |mean - x_i + g p|^2 = |p|^2 g^2 + 2 b_i g + d_i, at most the largest square
        offsets = mean[None] - scaled
        a = p @ p
        b = offsets @ p
        d = (offsets**2).sum(1)
        room = jnp.maximum(largest - d, 0)
        # this form of the root does not cancel for b > 0; for b <= 0 the other one does not
        root = jnp.sqrt(b**2 + a * room)
        sum_ = jnp.where(b > 0, root + b, 1)
        a = jnp.where(a > 0, a, 1)
        steps = jnp.where(b > 0, room / sum_, (root - b) / a)
        gamma = jnp.where(is_known, steps, jnp.inf).min()
        return scale * (mean + gamma * p)


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
