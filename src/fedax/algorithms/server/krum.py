"""Krum and Multi-Krum: the models with the closest neighbours."""

import jax.numpy as jnp

from fedax.algorithms.server.aggregation import ByzantineAggregation
from fedax.core import Citation, Gathered, Reduction, Vector, hyper
from fedax.numerics.robust import krum_ranks, squared_distances


class Krum(ByzantineAggregation):
    r"""The mean of the m models whose neighbours are closest; m = 1 is Krum, more is Multi-Krum.

    Of n models, up to f of them hostile, each has the score

    $$ s(i) = \sum_{i \to j} \lVert w_i - w_j \rVert^2, $$

    the sum over its $n - f - 2$ closest other ones, or one if that is none. Those with the lowest
    scores are taken, of equal ones the earlier in the cohort. All clients count alike, however many
    examples they say they have.

    Args:
        byzantine: f, at least 0; a positive one needs $2 f + 2 < n$ in the cohort that is drawn.
        selected: m, at least 1; all of a cohort that has fewer.

    Example:
        >>> import fedax
        >>> method = fedax.Krum(byzantine=2, selected=5)

    Source: Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent, NIPS 2017, Sec. 4 (Krum) and 5 (Multi-Krum). Code of the
    authors' group differs: github.com/LPD-EPFL/ByzantineMomentum (aggregators/krum.py) sums
    distances, not their squares, to the $n - f - 1$ closest models, and github.com/LPD-EPFL/byzfl
    squares to as many.
    """

    least_per_hostile = 2
    selected: int = hyper(1, low=1, doc="models that are averaged")

    citation = Citation(
        paper="Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient "
        "Descent, NIPS 2017",
        read=("authors' code", "others' code"),
        equation="Sec. 4 and 5",
        reductions=(Reduction({"selected": 1000}, "fedavg", equal_sizes=True),),
    )

    def combine(self, uploads: Gathered[Vector], w: Vector) -> Vector:
        changes = uploads.value - w[None]
        valid = uploads.valid
        ranks = krum_ranks(squared_distances(changes, valid), valid, self.byzantine)
        selection = (valid & (ranks < self.selected)).astype(w.dtype)
        return w + selection @ jnp.where(valid[:, None], changes, 0) / selection.sum()
