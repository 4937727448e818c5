"""FedLin: local steps along the corrected gradient, with rates that even out unequal work."""

import jax.numpy as jnp

from fedax.algorithms.server.dane import gradient
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    LocalProblem,
    Upload,
    Vector,
    hyper,
    scaled_gradient,
)


class FedLin(Algorithm[Vector]):
    r"""Everybody corrects its gradients by the difference to the global one, and unequal work gets
    unequal rates.

    $$ x_k \leftarrow x_k - \eta_k \Big( g_k(x_k) - \nabla f_k(w) + \sum_i p_i \nabla f_i(w) \Big)
    \text{ in every step},
       \qquad w \leftarrow \sum_k p_k x_k. $$

    With full gradients, w at the optimum stays, whatever the clients' losses and numbers of steps.
    Everybody takes part in every round. Sparse gradients, as in the paper, are a matter of
    `Channel(up=fedax.codecs.TopK())`.

    Args:
        rates: "common", $\eta_k = \eta$ of the solver, or "by_steps", $\eta_k = \eta / K_k$ with
            $K_k$ the client's steps, which is the paper's.

    Example:
        >>> import fedax
        >>> method = fedax.FedLin(rates="by_steps")

    Source: Mitra, Jaafar, Pappas and Hassani, Linear Convergence in Federated Learning: Tackling
    Client Heterogeneity and Sparse Gradients, NeurIPS 2021; common rates as in the code
    github.com/Glebzok/ProxSkip (proxskip/methods/fedlin.py); the paper's abstract says that rates
    are client-specific.
    """

    rates: str = hyper(
        "common", choices=("common", "by_steps"), doc="learning rates of the clients"
    )

    citation = Citation(
        paper="Mitra, Jaafar, Pappas and Hassani, Linear Convergence in Federated Learning, "
        "NeurIPS 2021",
        read=("abstract", "others' code"),
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        return fed.average(
            self.train, fed.everyone, state, fed.average(gradient, fed.everyone, state)
        )

    def train(self, client: Client, w: Vector, g: Vector) -> Upload[Vector]:
        # clients that only fill a chunk take no steps
        steps = jnp.maximum(jnp.asarray(client.steps, w.dtype), 1)
        factor = 1 / steps if self.rates == "by_steps" else jnp.ones_like(steps)

        problem = LocalProblem(
            linear=factor * (g - client.gradient(w)), step_gradient=scaled_gradient(factor)
        )
        return Upload(client.minimize(problem, start=w))
