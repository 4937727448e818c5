"""TrimmedMean: the mean of every coordinate without its extremes."""

import jax.numpy as jnp

from fedax.algorithms.server.aggregation import Aggregation
from fedax.core import Citation, Gathered, Reduction, Scalar, Vector, hyper
from fedax.numerics.robust import sort_uploads


class TrimmedMean(Aggregation):
    r"""Federated averaging with the coordinate-wise trimmed mean of the clients' models.

    In every coordinate the $\lceil \beta m \rceil$ largest and as many smallest of the m values are
    left out:

    $$ w^{(j)} \leftarrow \frac{1}{m - 2 \lceil \beta m \rceil} \sum_{x \in U_j} x, \qquad
       U_j \text{ the values of } \{ w_k^{(j)} : k \in S \} \text{ that are left}. $$

    $\beta$ has to be at least the share of a cohort that is hostile. All clients count alike,
    however many examples they say they have. The count is rounded up, so that no less than $\beta$
    is left out: 0.2 of four models is one at either end. At least one value, or two of an even
    number, is left.

    Args:
        beta: $\beta$, in [0, 0.5); 0 is the mean of FedAvg with equal weights.

    Example:
        >>> import fedax
        >>> method = fedax.TrimmedMean(beta=0.2)

    Source: Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards
    Optimal Statistical Rates, ICML 2018, Def. 2 and Alg. 1, option II, as in
    github.com/epfml/byzantine-robust-optimizer (codes/aggregator/trimmed_mean.py), which is not the
    authors' code.
    """

    beta: Scalar = hyper(
        0.2, low=0.0, high=0.5, open_high=True, doc="share that is left out at either end"
    )

    citation = Citation(
        paper="Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning, ICML "
        "2018",
        read=("others' code",),
        equation="Def. 2, Alg. 1, option II",
        reductions=(Reduction({"beta": 0.0}, "fedavg", equal_sizes=True),),
    )

    def combine(self, uploads: Gathered[Vector], w: Vector) -> Vector:
        ordered, count = sort_uploads(uploads)
        exact = jnp.asarray(self.beta, w.dtype) * count.astype(w.dtype)
        # in floating point 0.07 of 100 is above 7; the error is relative, so that any share above 0
        # leaves out a value
        least = exact * (1 - 8 * jnp.finfo(w.dtype).eps)
        # at least one value stays
        cut = jnp.minimum(jnp.ceil(least).astype(jnp.int32), (count - 1) // 2)
        position = jnp.arange(ordered.shape[0], dtype=jnp.int32)
        is_kept = (position >= cut) & (position < count - cut)
        return jnp.where(is_kept[:, None], ordered, 0).sum(0) / is_kept.sum(dtype=w.dtype)
