"""Dissimilarity of the clients' gradients."""

from typing import Any

import jax.numpy as jnp

from fedax.observe.base import Observer, View


class Dissimilarity(Observer):
    r"""Disagreement of the clients' full gradients at the global model.

    Costs one pass over all training examples.

    - `dissimilarity`: $B(w) = \sqrt{\sum_k p_k \lVert \nabla F_k \rVert^2} / \lVert \nabla F
      \rVert$ with $\nabla F = \sum_k p_k \nabla F_k$; 1 for identical clients (FedProx, Def. 3;
      also FedAWARE's gradient diversity, Def. 3.1).
    - `gradient_diversity`: the same with equal weights, $\sqrt{\frac1N \sum_k \lVert \nabla F_k
      \rVert^2} / \lVert \frac1N \sum_k \nabla F_k \rVert$, as FedAWARE's code of 2024 logs it (for
      the updates of a round).
    - `gradient_diversity_2023`: $\frac1N \sum_k \lVert \nabla F_k \rVert / \lVert \frac1N \sum_k
      \nabla F_k \rVert$, without squares and root, as the code released with the paper in 2023 logs
      it; never above the former.
    - `gradient_norm`: $\lVert \nabla F \rVert$, 0 at a minimum of the objective.
    - `gradient_variance`: $\frac1N \sum_k \lVert \nabla F_k - \nabla F \rVert^2$ (FedProx's
      "gradient difference").

    The shares $p_k$ are those of the objective, as in `Objective`.

    Source: Li et al., Federated Optimization in Heterogeneous Networks (arXiv:1812.06127), Def. 3;
    Zeng et al., Tackling Hybrid Heterogeneity on Federated Optimization via Gradient Diversity
    Maximization (arXiv:2310.02702), Def. 3.1, and its code.
    """

    lower_is_better = (
        "dissimilarity",
        "gradient_diversity",
        "gradient_diversity_2023",
        "gradient_norm",
        "gradient_variance",
    )

    def __call__(self, view: View) -> dict[str, Any]:
        g = view.gradients()
        return {
            "dissimilarity": jnp.sqrt(g.mean_square) / jnp.linalg.norm(g.mean),
            "gradient_diversity": jnp.sqrt(g.mean_square_uniform) / jnp.linalg.norm(g.mean_uniform),
            "gradient_diversity_2023": g.mean_norm_uniform / jnp.linalg.norm(g.mean_uniform),
            "gradient_norm": jnp.linalg.norm(g.mean),
            "gradient_variance": g.variance,
        }
