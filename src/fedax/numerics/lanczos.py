"""The ends of a spectrum from products with a symmetric matrix."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.utils.random import Index

Vector = Float[Array, "dim"]


def extremes(
    product: Callable[[Vector], Vector], start: Vector, steps: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Computes the lowest and the largest eigenvalue of a symmetric matrix A.

    By the Lanczos iteration with full reorthogonalisation.

    Ritz values lie inside the spectrum: the lowest one is approached from above, the largest one
    from below.

    >>> low, high = extremes(lambda v: jnp.asarray([-1.0, 0.5, 2.0]) * v, jnp.ones(3), steps=3)
    >>> [round(float(end), 5) for end in (low, high)]
    [-1.0, 2.0]

    Args:
        product: $v \mapsto A v$, traced.
        start: not zero, and not orthogonal to the eigenvectors that are looked for.
        steps: products, at least 1; more than the dimension are not taken.

    Source: Golub and Van Loan, Matrix Computations, 4th edition, Alg. 10.1.1.
    """
    dim, dtype = start.shape[0], start.dtype
    steps = min(steps, dim)
    zero = jnp.zeros(steps, dtype)

    def step(
        k: Index, state: tuple[Array, Array, Array, Array, Array]
    ) -> tuple[Array, Array, Array, Array, Array]:
        basis, diagonal, beside, v, going = state
        basis = basis.at[k].set(jnp.where(going, v, 0))
        moved = product(v)
        alpha = v @ moved
        for _ in range(2):  # once is not enough where the basis has lost its orthogonality
            moved = moved - basis.T @ (basis @ moved)
        beta = jnp.linalg.norm(moved)
        # an invariant subspace ends the iteration; the rest repeats a Ritz value of the spectrum
        diagonal = diagonal.at[k].set(jnp.where(going, alpha, diagonal[0]))
        scale = jnp.maximum(jnp.abs(diagonal).max(), beside.max())
        going = going & (beta > 64 * jnp.finfo(dtype).eps * scale)
        beside = beside.at[k].set(jnp.where(going, beta, 0))
        return (
            basis,
            diagonal,
            beside,
            jnp.where(going, moved / jnp.where(going, beta, 1), v),
            going,
        )

    first = start / jnp.linalg.norm(start)
    empty = jnp.zeros((steps, dim), dtype), zero, zero, first, jnp.bool(True)
    _, diagonal, beside, _, _ = jax.lax.fori_loop(0, steps, step, empty)
    matrix = jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
    ends = jnp.linalg.eigvalsh(matrix)
    return ends[0], ends[-1]
