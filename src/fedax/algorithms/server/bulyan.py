"""Bulyan: the values nearest to the median of the models that Krum picks one after the other."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fedax.algorithms.server.aggregation import ByzantineAggregation
from fedax.core import Citation, Gathered, Reduction, Vector
from fedax.numerics.robust import krum_ranks, sort_uploads, squared_distances


class Bulyan(ByzantineAggregation):
    r"""Federated averaging with Krum and a trimmed mean around the median.

    Of n models, up to f of them hostile, $\theta = n - 2 f$ are picked one after the other, each by
    Krum among those that are left. In every coordinate, the mean of the $\theta - 2 f$ of their
    values that are closest to their median is the new one:

    $$ w^{(j)} \leftarrow \frac{1}{\theta - 2 f} \sum_{x \in M_j} x, \qquad
       M_j \text{ those of } \{ w_k^{(j)} : k \text{ picked} \} \text{ closest to their median.} $$

    Krum alone may follow a model that is close in most coordinates and far in a single one, which
    in high dimension is enough to do harm. All clients count alike, however many examples they say
    they have.

    Args:
        byzantine: f, at least 0; it needs $4 f + 3 \le n$ in the cohort that is drawn. 0 is the
            mean of FedAvg with equal weights.

    Example:
        >>> import fedax
        >>> method = fedax.Bulyan(byzantine=2)

    Source: El Mhamdi, Guerraoui and Rouault, The Hidden Vulnerability of Distributed Learning in
    Byzantium, ICML 2018 (Bulyan with Krum), as in github.com/moranant/
    attacking_distributed_learning (defences.py), whose mean has one value less. Code of the
    authors' group (github.com/LPD-EPFL/ByzantineMomentum) takes means of Multi-Krum in place of
    single models, two fewer of them.
    """

    least_per_hostile = 4

    citation = Citation(
        paper="El Mhamdi, Guerraoui and Rouault, The Hidden Vulnerability of Distributed Learning "
        "in Byzantium, ICML 2018",
        read=("authors' code", "others' code"),
        reductions=(Reduction({"byzantine": 0}, "fedavg", equal_sizes=True),),
    )

    def combine(self, uploads: Gathered[Vector], w: Vector) -> Vector:
        changes = uploads.value - w[None]
        valid = uploads.valid
        # a cohort of fewer clients than expected keeps at least one
        picks = jnp.maximum(valid.sum(dtype=jnp.int32) - 2 * self.byzantine, 1)
        squares = squared_distances(changes, valid)

        def pick(i: Array, is_picked: Bool[Array, "capacity"]) -> Bool[Array, "capacity"]:
            is_left = valid & ~is_picked
            best = jnp.argmin(krum_ranks(squares, is_left, self.byzantine))
            return is_picked.at[best].set(is_picked[best] | (i < picks))

        is_picked = jax.lax.fori_loop(0, valid.shape[0], pick, jnp.zeros_like(valid))
        picked = Gathered(changes, uploads.weights, uploads.ids, is_picked)
        ordered, count = sort_uploads(picked)
        median = ordered[(count - 1) // 2] / 2 + ordered[count // 2] / 2
        # rows beyond the count are infinite, and so is their distance
        nearest = jnp.argsort(jnp.abs(ordered - median[None]), axis=0, stable=True)
        values = jnp.take_along_axis(ordered, nearest, axis=0)
        kept = jnp.maximum(picks - 2 * self.byzantine, 1)
        is_kept = jnp.arange(valid.shape[0], dtype=jnp.int32) < kept
        return w + jnp.where(is_kept[:, None], values, 0).sum(0) / kept.astype(w.dtype)
