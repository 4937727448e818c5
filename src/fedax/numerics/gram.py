"""Vectors of all clients with their inner products, kept up to date at the cost of a cohort."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedax.core.federation import Gathered
from fedax.numerics.simplex import MinNorm, min_norm
from fedax.utils.layout import Vector
from fedax.utils.norms import scale_of


class ClientVectors(eqx.Module):
    r"""A vector $m_i$ of each client, and the Gram matrix of all.

    Vectors are zero until they are first set; $G_{ij} = \langle m_i / s_i, m_j / s_j \rangle$.

    The powers of two $s_i$ are 1 but for vectors whose squares would not fit into the float type,
    see `power_of_two`.

    Attributes:
        vectors: $m_i$.
        gram: G.
        known: whether each client's vector was ever set.
    """

    vectors: Float[Array, "clients dim"]
    gram: Float[Array, "clients clients"]
    known: Bool[Array, "clients"]

    @staticmethod
    def zeros(clients: int, like: Vector) -> "ClientVectors":
        """Returns the state before any vector is set."""
        vectors = jnp.zeros((clients, like.shape[0]), like.dtype)
        return ClientVectors(
            vectors, jnp.zeros((clients, clients), like.dtype), jnp.zeros(clients, bool)
        )

    def update(
        self, uploads: Gathered[Any], new_vectors: Float[Array, "capacity dim"]
    ) -> "ClientVectors":
        """Returns a copy with new vectors of the clients that sent something.

        Only their rows and columns of G are computed.
        """
        # padding falls off the end
        rows = jnp.where(uploads.valid, uploads.ids, self.known.shape[0])
        vectors = self.vectors.at[rows].set(new_vectors, mode="drop")
        scale = scale_of(vectors, axis=1, keepdims=True)
        products = (vectors / scale) @ (
            new_vectors / scale_of(new_vectors, axis=1, keepdims=True)
        ).T
        gram = (
            self.gram.at[rows].set(products.T, mode="drop").at[:, rows].set(products, mode="drop")
        )
        return ClientVectors(vectors, gram, self.known.at[rows].set(True, mode="drop"))

    def combine(
        self, start: Float[Array, "clients"], unit: bool = False
    ) -> tuple[Float[Array, "dim"], MinNorm]:
        r"""Computes the shortest convex combination of the vectors that were set, and its weights.

        It is $\sum_i \lambda_i m_i$.

        Args:
            start: weights near the solution, above 0 for some vector that was set.
            unit: combines $m_i / \lVert m_i \rVert$ instead.
        """
        norms = jnp.sqrt(jnp.diagonal(self.gram))
        sizes = scale_of(self.vectors, axis=1)
        # in units in which the shortest vectors' squares fit, as long as the longest ones' do
        counted = norms > 0
        most = 2.0 ** min(50, int(jnp.finfo(norms.dtype).maxexp) * 2 // 5)
        longest = jnp.max(jnp.where(counted, sizes, 0))
        reference = jnp.maximum(jnp.min(jnp.where(counted, sizes, jnp.inf)), longest / most)
        reference = jnp.where(counted.any(), reference, 1)
        scale = jnp.where(counted, 1 / norms, 1) if unit else sizes / reference
        start = jnp.where(self.known, start, 0)
        best = min_norm(self.gram * scale[:, None] * scale[None], self.known, start / start.sum())
        # weights of vectors that are not divided by their length need no scale
        weights = best.weights * scale / sizes if unit else best.weights
        return weights @ self.vectors, best
