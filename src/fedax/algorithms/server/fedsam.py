"""FedSAM: FedAvg with sharpness-aware local steps."""

from fedax.algorithms.server.fedavg import FedAvg
from fedax.core import (
    Citation,
    Client,
    LocalProblem,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
    sharp_gradient,
)


class FedSAM(FedAvg):
    r"""FedAvg whose local steps take their gradients at the worst point nearby.

    $$ \tilde g = g_B\Big(w + \rho \frac{g_B(w)}{\lVert g_B(w) \rVert}\Big), $$

    with $g_B$ the gradient on the step's minibatch. Momentum, clipping and decay are those of the
    solver, and aggregation is FedAvg's, with any server optimizer. Other methods become
    sharpness-aware by their solver: `fedax.SGD(sharpness=rho)`.

    Args:
        rho: $\rho$, at least 0; 0 is FedAvg.
        server, ids: as in `FedAvg`.

    Example:
        >>> import fedax
        >>> method = fedax.FedSAM(rho=0.05)

    Source: Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022,
    as in github.com/woodenchild95/FL-Simulator (client/fedsam.py, optimizer/ESAM.py), which is not
    the authors' code.
    """

    rho: Scalar = hyper(0.1, low=0.0, doc="distance to the worst point nearby")

    citation = Citation(
        paper="Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML "
        "2022",
        read=("others' code",),
        reductions=(Reduction({"rho": 0.0}, "fedavg"),),
    )

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        sharp = LocalProblem(step_gradient=sharp_gradient(self.rho))
        return Upload(client.minimize(sharp, start=w))
