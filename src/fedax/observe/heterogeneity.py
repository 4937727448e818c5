"""How unlike the clients' gradients and models are."""

import jax.numpy as jnp
from jaxtyping import Array, Float

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

    def __call__(self, view: View) -> dict[str, Array]:
        g = view.gradients()
        return {
            "dissimilarity": jnp.sqrt(g.mean_square) / jnp.linalg.norm(g.mean),
            "gradient_diversity": jnp.sqrt(g.mean_square_uniform) / jnp.linalg.norm(g.mean_uniform),
            "gradient_diversity_2023": g.mean_norm_uniform / jnp.linalg.norm(g.mean_uniform),
            "gradient_norm": jnp.linalg.norm(g.mean),
            "gradient_variance": g.variance,
        }


class Consensus(Observer):
    r"""`consensus`: the mean distance of the clients' models to their mean.

    $\frac1m \sum_i \lVert x_i - \bar x \rVert$.

    0 for methods with a server.
    """

    lower_is_better = ("consensus",)

    def __call__(self, view: View) -> dict[str, Array]:
        return {"consensus": jnp.linalg.norm(_deviations(view), axis=1).mean()}


class ConsensusSquare(Observer):
    r"""`consensus_square`: the mean squared distance of the models to their mean.

    $\frac1m \sum_i \lVert x_i - \bar x \rVert^2$, as in DFedAvgM's eqs. (9) and (10); 0 with a
    server.

    The bounds are those of `fedax.theory.dfedavgm.consensus_bound`.
    """

    lower_is_better = ("consensus_square",)

    def __call__(self, view: View) -> dict[str, Array]:
        return {"consensus_square": (_deviations(view) ** 2).sum(1).mean()}


def _deviations(view: View) -> Float[Array, "models dim"]:
    """Returns the clients' models without their mean; of a server's model, one row of zeros."""
    if view.nodes is None:
        return jnp.zeros((1, *view.w.shape), view.w.dtype)
    return view.nodes - view.nodes.mean(0, keepdims=True)
