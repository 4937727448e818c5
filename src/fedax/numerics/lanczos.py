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
    dim = start.shape[0]
    dtype = start.dtype
    steps = min(steps, dim)
    zero = jnp.zeros(steps, dtype)

    def step(
        k: Index, state: tuple[Array, Array, Array, Array, Array]
    ) -> tuple[Array, Array, Array, Array, Array]:
        basis, diagonal, off_diagonal, v, is_running = state
        basis = basis.at[k].set(jnp.where(is_running, v, 0))
        residual = product(v)
        alpha = v @ residual
        for _ in range(2):  # once is not enough where the basis has lost its orthogonality
            residual = residual - basis.T @ (basis @ residual)
        beta = jnp.linalg.norm(residual)
        # an invariant subspace ends the iteration; the rest repeats a Ritz value of the spectrum
        diagonal = diagonal.at[k].set(jnp.where(is_running, alpha, diagonal[0]))
        scale = jnp.maximum(jnp.abs(diagonal).max(), off_diagonal.max())
        is_running = is_running & (beta > 64 * jnp.finfo(dtype).eps * scale)
        off_diagonal = off_diagonal.at[k].set(jnp.where(is_running, beta, 0))
        return (
            basis,
            diagonal,
            off_diagonal,
            jnp.where(is_running, residual / jnp.where(is_running, beta, 1), v),
            is_running,
        )

    first = start / jnp.linalg.norm(start)
    initial = jnp.zeros((steps, dim), dtype), zero, zero, first, jnp.bool(True)
    _, diagonal, off_diagonal, _, _ = jax.lax.fori_loop(0, steps, step, initial)
    matrix = jnp.diag(diagonal) + jnp.diag(off_diagonal[:-1], 1) + jnp.diag(off_diagonal[:-1], -1)
    eigenvalues = jnp.linalg.eigvalsh(matrix)
    return eigenvalues[0], eigenvalues[-1]
