"""FedCM: client-level momentum from the server."""

import equinox as eqx
import jax.numpy as jnp

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    LocalProblem,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
    scaled_gradient,
)


class MomentumState(eqx.Module):
    """The global model, and the mean direction of the last round's local steps."""

    w: Vector
    m: Vector


class FedCM(Algorithm[MomentumState]):
    r"""FedAvg whose local steps mix in the direction that all clients went in the last round.

    $$ x_k \leftarrow x_k - \eta \big( \alpha\, g_k(x_k) + (1 - \alpha)\, m \big) \text{ in every
    step}, \qquad
       m \leftarrow \operatorname{mean}_S \frac{w - x_k}{K_k \eta}, \qquad
       w \leftarrow w + \eta_g \operatorname{mean}_S (x_k - w), $$

    with $K_k$ the client's steps and $m = 0$ at first. This is momentum in FedAvg without memory at
    the clients, so that sampled cohorts profit from those before. Needs SGD without momentum as the
    solver.

    Where all clients take K steps this is FedAvg-M of Cheng et al. (2024), with $\beta = \alpha$
    and $\gamma = \eta_g K \eta$. `SCAFFOLDM` adds control variates.

    Args:
        alpha: $\alpha$, in (0, 1]; 1 is FedAvg.
        lr: $\eta_g$, above 0.

    Example:
        >>> import fedax
        >>> method = fedax.FedCM(alpha=0.1)

    Source: Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021
    (arXiv:2106.10874), as in github.com/woodenchild95/FL-Simulator (client/fedcm.py,
    server/FedCM.py), which is not the authors' code.
    """

    alpha: Scalar = hyper(
        0.1, low=0.0, open_low=True, high=1.0, doc="weight of the client's own gradient"
    )
    lr: Scalar = hyper(1.0, low=0.0, open_low=True, doc="server learning rate")

    citation = Citation(
        paper="Xu et al., FedCM: Federated Learning with Client-level Momentum, arXiv:2106.10874",
        read=("others' code",),
        reductions=(Reduction({"alpha": 1.0}, "fedavg"),),
    )

    def init(self, fed: Federation, w: Vector) -> MomentumState:
        return MomentumState(w, jnp.zeros_like(w))

    def round(self, fed: Federation, state: MomentumState) -> MomentumState:
        change, m = fed.average(self.train, fed.sample(), state.w, state.m)
        return MomentumState(state.w + self.lr * change, m)

    def train(self, client: Client, w: Vector, m: Vector) -> Upload[tuple[Vector, Vector]]:
        problem = LocalProblem(
            linear=(1 - self.alpha) * m, step_gradient=scaled_gradient(self.alpha)
        )
        change = client.minimize(problem, start=w) - w
        return Upload((change, client.mean_gradient(-change)), is_change=True)
