"""The shortest convex combination of vectors."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedax.core.hyper import Scalar


class MinNorm(eqx.Module):
    """A solution and how good it is.

    Attributes:
        weights: at least 0, of sum 1.
        gap: a bound on how far half the squared norm is above its minimum, at least 0; the
            certificate.
        steps: iterations taken.
    """

    weights: Float[Array, "vectors"]
    gap: Float[Array, ""]
    steps: Int[Array, ""]


def min_norm(
    gram: Float[Array, "vectors vectors"],
    valid: Bool[Array, "vectors"],
    centre: Float[Array, "vectors"] | None = None,
    radius: Scalar = 1.0,
    max_steps: int = 10_000,
) -> MinNorm:
    r"""Minimises $\frac12 \lVert \sum_i \lambda_i m_i \rVert^2$ over the simplex.

    Near a centre if one is given.

    Pairwise Frank-Wolfe: mass moves from the vector with the largest entry $g_a$ of the gradient
    $g = G \lambda$ that can lose some to the one with the smallest entry $g_t$ that can gain some,
    by exact line search. Unlike the plain method it converges linearly on the simplex, and it keeps
    to the box $|\lambda_i - c_i| \le \varepsilon$ as easily. As any feasible point differs by at
    most a mass of 1, the objective is at most $g_a - g_t$ above its minimum. It stops where that is
    rounding error.

    >>> result = min_norm(jnp.asarray([[4.0, 0.0], [0.0, 1.0]]), jnp.asarray([True, True]))
    >>> [round(float(weight), 4) for weight in result.weights]
    [0.2, 0.8]

    Args:
        gram: $G_{ij} = \langle m_i, m_j \rangle$.
        valid: vectors that may get weight; at least one.
        centre: $c$, a point of the simplex with no weight on invalid vectors; the start. By default
            the shortest valid vector.
        radius: $\varepsilon$, above 0; 1 is the whole simplex.
        max_steps: iterations after which the best so far is returned, with its gap.

    Source: Lacoste-Julien and Jaggi, On the Global Linear Convergence of Frank-Wolfe Optimization
    Variants, NeurIPS 2015, Alg. 2.
    """
    dtype = gram.dtype
    squares = jnp.diagonal(gram)
    if centre is None:
        centre = jax.nn.one_hot(
            jnp.argmin(jnp.where(valid, squares, jnp.inf)), squares.shape[0], dtype=dtype
        )
    # the box around the centre, within the simplex
    low = jnp.maximum(centre - radius, 0)
    high = jnp.where(valid, jnp.minimum(centre + radius, 1), 0)
    tolerance = 4 * jnp.finfo(dtype).eps * jnp.max(jnp.where(valid, squares, 0))

    def choose_pair(weights: Array, gradient: Array) -> tuple[Array, Array, Array]:
        away = jnp.argmax(jnp.where(weights > low, gradient, -jnp.inf))
        toward = jnp.argmin(jnp.where(weights < high, gradient, jnp.inf))
        return away, toward, jnp.maximum(gradient[away] - gradient[toward], 0)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        weights, gradient, away, toward, gap, steps = state
        curvature = squares[away] + squares[toward] - 2 * gram[away, toward]
        most = jnp.minimum(weights[away] - low[away], high[toward] - weights[toward])
        move = jnp.where(gap < most * curvature, gap / jnp.where(curvature > 0, curvature, 1), most)
        weights = weights.at[away].add(-move).at[toward].add(move)
        # what was moved to a bound is at it, whatever the rounding
        weights = weights.at[away].max(low[away]).at[toward].min(high[toward])
        gradient = gradient + move * (gram[toward] - gram[away])
        return weights, gradient, *choose_pair(weights, gradient), steps + 1

    def continues(state: tuple[Array, ...]) -> Array:
        return (state[4] > tolerance) & (state[5] < max_steps)

    gradient = gram @ centre
    weights, _, _, _, _, steps = jax.lax.while_loop(
        continues, step, (centre, gradient, *choose_pair(centre, gradient), jnp.int32(0))
    )
    weights, refining_steps = _refine(
        gram, weights, low, high, jnp.minimum(max_steps - steps, 1000)
    )
    _, _, gap = choose_pair(weights, gram @ weights)
    return MinNorm(weights, gap, steps + refining_steps)


def _refine(
    gram: Float[Array, "vectors vectors"],
    weights: Float[Array, "vectors"],
    low: Float[Array, "vectors"],
    high: Float[Array, "vectors"],
    max_steps: Int[Array, ""],
) -> tuple[Float[Array, "vectors"], Int[Array, ""]]:
    r"""Moves mass between pairs as long as one is surely better.

    Returns the weights and the number of steps.

    `min_norm` stops at the rounding error of the longest vector. Where lengths differ much, that
    hides differences of short ones. Here each pair has its own: entries of $G \lambda$ are known to
    $\varepsilon \lVert m_i \rVert \sum_j \lambda_j \lVert m_j \rVert$. Of the pairs that differ by
    more, the one that lowers the objective most is taken.
    """
    lengths = jnp.sqrt(jnp.diagonal(gram))
    longer = jnp.maximum(lengths[:, None], lengths[None])
    squares = lengths**2
    # of nearly equal vectors the difference is rounding error
    curvature = squares[:, None] + squares[None] - 2 * gram
    eps = jnp.finfo(gram.dtype).eps
    curvature = jnp.maximum(curvature, 4 * eps * longer**2)

    def choose_move(weights: Array) -> tuple[Array, Array, Array]:
        gradient = gram @ weights
        gap = gradient[:, None] - gradient[None]
        sure = gap - 16 * eps * longer * (weights @ lengths)
        most = jnp.minimum((weights - low)[:, None], (high - weights)[None])
        move = jnp.minimum(
            jnp.where(curvature > 0, gap / jnp.where(curvature > 0, curvature, 1), 0), most
        )
        gain = jnp.where((sure > 0) & (most > 0), move * (gap - curvature * move / 2), 0)
        index = jnp.argmax(gain)
        return index, move.ravel()[index], gain.ravel()[index]

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        weights, index, move, _, steps = state
        away = index // weights.shape[0]
        toward = index % weights.shape[0]
        weights = weights.at[away].add(-move).at[toward].add(move)
        weights = weights.at[away].max(low[away]).at[toward].min(high[toward])
        return weights, *choose_move(weights), steps + 1

    def continues(state: tuple[Array, ...]) -> Array:
        return (state[3] > 0) & (state[4] < max_steps)

    result = jax.lax.while_loop(continues, step, (weights, *choose_move(weights), jnp.int32(0)))
    return result[0], result[4]
