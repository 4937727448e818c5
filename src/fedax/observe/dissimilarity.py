"""How far the clients disagree."""

from typing import Any

import jax.numpy as jnp

from fedax.core import Observer, View


class Dissimilarity(Observer):
    r"""Disagreement of the clients' full gradients at the global model; costs one pass over all training examples.

    - `dissimilarity`: $B(w) = \sqrt{\sum_k p_k \lVert \nabla F_k \rVert^2} / \lVert \sum_k p_k \nabla F_k \rVert$ with
      $p_k = n_k/n$; 1 for identical clients (FedProx, Def. 3; also FedAWARE's gradient diversity, Def. 3.1).
    - `gradient_diversity`: the same with equal weights $1/N$, as FedAWARE logs it.
    - `gradient_norm`: $\lVert \sum_k p_k \nabla F_k \rVert$.
    - `gradient_variance`: $\frac1N \sum_k \lVert \nabla F_k - \nabla F \rVert^2$ (FedProx's "gradient difference").
    """

    def __call__(self, view: View) -> dict[str, Any]:
        g = view.gradients()
        return {
            "dissimilarity": jnp.sqrt(g.mean_square) / jnp.linalg.norm(g.mean),
            "gradient_diversity": jnp.sqrt(g.mean_square_uniform) / jnp.linalg.norm(g.mean_uniform),
            "gradient_norm": jnp.linalg.norm(g.mean),
            "gradient_variance": g.variance,
        }
