"""GeometricMedian: the point with the smallest sum of distances in place of the mean."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from fedax.algorithms.server.aggregation import Aggregation
from fedax.core import Card, Gathered, Reduction, Scalar, Vector, hyper
from fedax.utils.norms import scale_of
from fedax.utils.random import Index


class GeometricMedian(Aggregation):
    r"""RFA: federated averaging with the geometric median of the clients' models, by the smoothed
    Weiszfeld algorithm.

    $$ w \leftarrow \arg\min_v \sum_{k \in S} \alpha_k \lVert v - w_k \rVert : \qquad
       \beta_k = \frac{\alpha_k}{\max(\nu, \lVert v - w_k \rVert)}, \qquad
       v \leftarrow \frac{\sum_k \beta_k w_k}{\sum_k \beta_k}, $$

    $\alpha_k$ the cohort's weights. The iteration begins at the model that everybody received.
    Models within $\nu$ of v would hold it there for about $1 / \nu$ iterations; then the step of
    Vardi and Zhang is taken if it is the better one, towards the other models by what they pull
    more. In the paper every iteration is a secure average of its own, a message up and down; here
    the models come once and the server iterates.

    Args:
        iterations: at least 1; the paper has 3.
        nu: $\nu$, above 0; with a large one this is FedAvg.

    Example:
        >>> import fedax
        >>> method = fedax.GeometricMedian(iterations=3)

    Source: Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE
    Transactions on Signal Processing 70, 2022, Alg. 1 (RFA) and 2 (smoothed Weiszfeld). Vardi and
    Zhang, The Multivariate L1-Median and Associated Data Depth, PNAS 97, 2000, eq. (2.6).
    """

    iterations: int = hyper(3, low=1, doc="Weiszfeld iterations of a round")
    nu: Scalar = hyper(1e-6, low=0.0, open_low=True, doc="least distance that counts")

    card: ClassVar[Card] = Card(
        paper="Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE "
        "TSP 70, 2022",
        equation="Alg. 1 and 2",
        reductions=(Reduction({"nu": 1e30}, "fedavg"),),
    )

    def combine(self, uploads: Gathered[Vector], w: Vector) -> Vector:
        changes, shares = uploads.value - w[None], uploads.shares()

        # squares of large and small changes fit
        scale = scale_of(jnp.where(uploads.valid[:, None], changes, 0))
        changes, nu = jnp.where(uploads.valid[:, None], changes, 0) / scale, self.nu / scale

        def objective(v: Vector) -> Scalar:
            distance = jnp.linalg.norm(changes - v[None], axis=1)
            # the smoothed norm: quadratic within nu, so that its slope exists at a model
            return shares @ jnp.where(
                distance > nu, distance, (distance * (distance / nu) + nu) / 2
            )

        def weiszfeld_step(_: Index, v: Vector) -> Vector:
            distance = jnp.linalg.norm(changes - v[None], axis=1)
            pull = shares / jnp.maximum(distance, nu)
            step = pull @ changes / pull.sum()
            # a model within nu of v holds it nearly still: Vardi and Zhang's step leaves such
            # models out as far as the others pull
            others_pull = jnp.where(distance > nu, pull, 0)
            total = others_pull.sum()
            others = others_pull @ changes / jnp.where(total > 0, total, 1)
            force = jnp.linalg.norm(others - v) * total
            stay = jnp.minimum(
                jnp.where(distance > nu, 0, shares).sum() / jnp.where(force > 0, force, 1), 1
            )
            escape = jnp.where(
                (total > 0) & (total < pull.sum()) & (force > 0),
                (1 - stay) * others + stay * v,
                step,
            )
            return jnp.where(objective(escape) < objective(step), escape, step)

        return w + scale * jax.lax.fori_loop(0, self.iterations, weiszfeld_step, jnp.zeros_like(w))
