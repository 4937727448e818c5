"""FedExProx: FedProx with extrapolated server steps."""

import optax

from fedax.algorithms.server.fedavg import FedAvg
from fedax.core import Citation, Client, LocalProblem, Reduction, Scalar, Upload, Vector, hyper


class FedExProx(FedAvg):
    r"""The server goes beyond the mean of the clients' proximal points, by a constant factor.

    $$ w_k \approx \operatorname{prox}_{\gamma f_k}(w) = \arg\min_v\; f_k(v) + \frac{1}{2 \gamma}
    \lVert v - w \rVert^2, \qquad
       w \leftarrow w + \alpha \big( \operatorname{mean}_S w_k - w \big). $$

    $\alpha = 1$ is FedProx with $\mu = 1/\gamma$. The theory speaks of exact proximal points
    (`Exact` as the solver), of losses with a common minimiser, and of extrapolation, $\alpha > 1$.
    The paper's adaptive rules are not here.

    Args:
        gamma: $\gamma$, above 0.
        alpha: $\alpha$, above 0.

    Example:
        >>> import fedax
        >>> method = fedax.FedExProx(gamma=1.0, alpha=1.5)

    Source: Li, Acharya and Richtarik, The Power of Extrapolation in Federated Learning, NeurIPS
    2024 (arXiv:2405.13766). The constant rule as a public implementation describes it.
    """

    gamma: Scalar = hyper(1.0, low=0.0, open_low=True, doc="step size of the proximal points")
    alpha: Scalar = hyper(1.0, low=0.0, open_low=True, doc="extrapolation, 1 for none")

    citation = Citation(
        paper="Li, Acharya and Richtarik, The Power of Extrapolation in Federated Learning, "
        "NeurIPS 2024",
        read=("abstract",),
        reductions=(
            Reduction({"gamma": 2.0, "alpha": 1.0}, "fedprox", {"mu": 0.5}),
            Reduction({"gamma": 1e30}, "fedavg"),
        ),
    )

    def optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(self.alpha)  # type: ignore[arg-type]

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        return Upload(client.minimize(LocalProblem(anchor=w, prox=1 / self.gamma), start=w))
