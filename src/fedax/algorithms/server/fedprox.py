"""FedProx: FedAvg with a proximal term."""

from fedax.algorithms.server.fedavg import FedAvg
from fedax.core import Citation, Client, LocalProblem, PerClient, Reduction, Upload, Vector, hyper


class FedProx(FedAvg):
    r"""Local problems are held near the global model.

    $$ w_k \approx \arg\min_w\; f_k(w) + \frac{\mu}{2} \lVert w - w_t \rVert^2 . $$

    The gradient of the added term is $\mu (w - w_t)$. Aggregation is FedAvg's, with any server
    optimizer.

    Args:
        mu: $\mu$, one number or one per client; at least 0.
        server: as in `FedAvg`.

    Example:
        >>> import fedax
        >>> fedax.FedProx(mu=1.0).mu
        1.0

    Source: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Alg. 2.
    """

    mu: PerClient = hyper(0.1, low=0.0, per_client=True, doc="weight of the proximal term")

    citation = Citation(
        paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020",
        read=("paper", "authors' code"),
        equation="Alg. 2",
        reductions=(Reduction({"mu": 0.0}, "fedavg"),),
        by_examples=True,
    )

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        problem = LocalProblem(anchor=w, prox=client.mine(self.mu))
        return Upload(client.minimize(problem, start=w))
