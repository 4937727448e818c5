"""GeometricMedian: the point with the smallest sum of distances in place of the mean."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedax.algorithms.server.aggregation import Aggregation
from fedax.core import Citation, Gathered, Reduction, Scalar, Vector, hyper
from fedax.utils.layout import accumulator
from fedax.utils.norms import lengths, power_of_two


class GeometricMedian(Aggregation):
    r"""RFA: federated averaging with the geometric median of the clients' models, by the smoothed
    Weiszfeld algorithm.

    $$ w \leftarrow \arg\min_v \sum_{k \in S} \alpha_k \lVert v - w_k \rVert : \qquad
       \beta_k = \frac{\alpha_k}{\max(\nu, \lVert v - w_k \rVert)}, \qquad
       v \leftarrow \frac{\sum_k \beta_k w_k}{\sum_k \beta_k}, $$

    $\alpha_k$ the cohort's weights. The iteration begins at the model that everybody received. The
    authors' code begins at the weighted mean, which differs after few iterations, and stops where
    the sum of distances hardly falls. Models within $\nu$ of v would hold it there for about $1 /
    \nu$ iterations; then the step of Vardi and Zhang is taken if it is the better one, towards the
    other models by what they pull more. In the paper every iteration is a secure average of its
    own, a message up and down; here the models come once and the server iterates.

    Args:
        iterations: at least 1; the paper has 3.
        nu: $\nu$, above 0; with a large one this is FedAvg.

    Example:
        >>> import fedax
        >>> method = fedax.GeometricMedian(iterations=3)

    Source: Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE
    Transactions on Signal Processing 70, 2022, Alg. 1 (RFA) and 2 (smoothed Weiszfeld), as in the
    authors' code (github.com/krishnap25/RFA, models/model.py). Vardi and Zhang, The Multivariate
    L1-Median and Associated Data Depth, PNAS 97, 2000, eq. (2.6).
    """

    iterations: int = hyper(3, low=1, doc="Weiszfeld iterations of a round")
    nu: Scalar = hyper(1e-6, low=0.0, open_low=True, doc="least distance that counts")

    citation = Citation(
        paper="Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE "
        "TSP 70, 2022",
        read=("authors' code",),
        equation="Alg. 1 and 2",
        reductions=(Reduction({"nu": 1e30}, "fedavg"),),
    )

    def combine(self, uploads: Gathered[Vector], w: Vector) -> Vector:
        # distances, their reciprocals and their sums do not fit into half precision
        wide = accumulator(w.dtype)
        changes = jnp.where(uploads.valid[:, None], uploads.value - w[None], 0).astype(wide)
        # the largest numbers' distances fit, too
        shrink = jnp.where(jnp.abs(changes).max() > 2.0**100, jnp.asarray(2.0**-26, wide), 1)
        # infinite where half precision does not hold it
        nu = jnp.minimum(jnp.asarray(self.nu, wide), jnp.finfo(wide).max)
        changes = changes * shrink
        nu = nu * shrink
        shares = uploads.shares().astype(wide)

        def smoothed(v: Vector) -> Array:
            # every model's distance by itself: a hostile one that is far away must not make
            # those of the others underflow
            distance = lengths(changes - v[None])
            # quadratic within nu, so that its slope exists at a model
            return jnp.where(distance > nu, distance, (distance * (distance / nu) + nu) / 2)

        def combine_by_distance(distance: Array, is_counted: Array) -> tuple[Vector, Array, Array]:
            """Returns the mean by beta, the sum of the betas and their unit."""
            # only their proportions count for the mean, so that the largest may be near 1
            unit = power_of_two(jnp.where(is_counted, distance, jnp.inf).min())
            ratio = distance / unit
            total = jnp.where(is_counted, shares / ratio, 0).sum()
            # a far model is too long and its beta too small, but their product is neither
            exponent = jnp.clip(jnp.frexp(distance)[1], jnp.finfo(wide).minexp + 4)
            power = jnp.where(ratio > 2.0**40, jnp.ldexp(jnp.ones_like(ratio), exponent - 1), 1)
            pull = jnp.where(power == 1, shares / ratio, shares * unit / (distance / power))
            mean = jnp.where(is_counted, pull, 0) @ (changes / power[:, None])
            return mean / jnp.where(total > 0, total, 1), total, unit

        def weiszfeld_step(_: Array, v: Vector) -> Vector:
            distance = lengths(changes - v[None])
            is_far = distance > nu
            reach = jnp.maximum(distance, nu)
            step, _, _ = combine_by_distance(reach, uploads.valid)
            # a model within nu of v holds it nearly still: Vardi and Zhang's step leaves such
            # models out as far as the others pull
            others, total, unit = combine_by_distance(reach, is_far & uploads.valid)
            force = lengths((others - v)[None])[0] / unit * total
            held = jnp.where(is_far, 0, shares).sum()
            stay = jnp.minimum(held / jnp.where(force > 0, force, 1), 1)
            escape = jnp.where(
                (total > 0) & (held > 0) & (force > 0), (1 - stay) * others + stay * v, step
            )
            # model by model, as the rounding of a long distance hides changes of short ones
            is_better = shares @ (smoothed(escape) - smoothed(step)) < 0
            return jnp.where(is_better, escape, step)

        start = jnp.zeros(w.shape, wide)
        change = jax.lax.fori_loop(0, self.iterations, weiszfeld_step, start) / shrink
        return w + change.astype(w.dtype)
