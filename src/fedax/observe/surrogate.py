"""The surrogate weights of FedAWARE on the clients' gradients."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client
from fedax.numerics.simplex import min_norm
from fedax.observe.base import Observer, View


class SurrogateDiversity(Observer):
    r"""The largest surrogate diversity that weights of the clients can reach, and the weights.

    At the global model:

    - `diversity`: $D = \sqrt{\sum_k p_k \lVert \nabla f_k \rVert^2} / \lVert \sum_k p_k \nabla f_k
      \rVert$.
    - `surrogate_diversity`: $\tilde D$, with the shortest convex combination
      $d = \sum_k \tilde\lambda_k \nabla f_k$ below; infinite where one client is at a stationary
      point.
    - `surrogate_distance`: $N + \chi^2 - 2 \chi = \sum_k (\tilde\lambda_k - p_k)^2 / p_k^2$;
      Theorem 4.1 as printed needs less than 0.382.
    - `surrogate_gap`: $\lVert d \rVert^2 - \min_k \langle d, \nabla f_k \rangle \ge 0$, the
      certificate of the weights.
    - `surrogate_weight`, shape (clients,): $\tilde\lambda_k$.

    The shares $p_k$ are those of the objective, as in `Objective`. Costs clients x dim numbers.

    Source: Zeng et al., Tackling Hybrid Heterogeneity on Federated Optimization via Gradient
    Diversity Maximization (arXiv:2310.02702), Definitions 3.1 and 3.2, eq. (8), Theorem 4.1.
    """

    def __call__(self, view: View) -> dict[str, Any]:
        def gradient(client: Client) -> Float[Array, "dim"]:
            return client.gradient(view.w)

        gradients, share = view.each(gradient), view.share.astype(view.w.dtype)
        # found: gradients, shape (clients, dim); their Gram matrix decides the shortest combination
        best = min_norm(gradients @ gradients.T, jnp.ones(len(gradients), bool)).weights
        square, shortest = share @ (gradients**2).sum(1), best @ gradients
        length = shortest @ shortest
        return {
            "diversity": jnp.sqrt(square) / jnp.linalg.norm(share @ gradients),
            "surrogate_diversity": jnp.sqrt(square / length),
            "surrogate_distance": (((best - share) / share) ** 2).sum(),
            "surrogate_gap": jnp.maximum(length - (gradients @ shortest).min(), 0),
            "surrogate_weight": best,
        }
