"""DFedSAM: sharpness-aware local training on a graph."""

from fedax.algorithms.decentralized.dfedavgm import DFedAvgM
from fedax.core import (
    Citation,
    Client,
    ClientStates,
    Federation,
    LocalProblem,
    Scalar,
    Upload,
    Vector,
    hyper,
    sharp_gradient,
)


class DFedSAM(DFedAvgM):
    r"""DFedAvgM with gradients from the worst point nearby, and with several averages after each
    other.

    $$ z_i = \text{local solver from } x_i \text{ with } \tilde g_B \text{ of FedSAM}, \qquad
       x_i \leftarrow \text{component i of } W^Q z. $$

    With Q above 1 this is DFedSAM-MGS, which sends Q messages a round to every neighbour.

    Args:
        rho: $\rho$, at least 0.
        gossips: Q, at least 1.
        topology, graph: as in `DFedAvgM`.

    Example:
        >>> import fedax
        >>> method = fedax.DFedSAM(rho=0.01, gossips=4)

    Source: Shi et al., Improving the Model Consistency of Decentralized Federated Learning, ICML
    2023 (DFedSAM, DFedSAM-MGS), as in public implementations (rho 0.01, 4 gossip steps).
    """

    rho: Scalar = hyper(0.01, low=0.0, doc="distance to the worst point nearby")
    gossips: int = hyper(1, low=1, high=1000, doc="averages with the neighbours in a round")

    citation = Citation(
        paper="Shi et al., Improving the Model Consistency of Decentralized Federated Learning, "
        "ICML 2023",
        read=("others' code",),
    )

    def round(self, fed: Federation, state: ClientStates) -> ClientStates:
        state = super().round(fed, state)
        for _ in range(self.gossips - 1):
            state = fed.exchange(self.network(fed.clients), self.forward, self.receive, state)
        return state

    def send(self, client: Client, state: Vector) -> Upload[Vector]:
        return Upload(
            client.minimize(LocalProblem(step_gradient=sharp_gradient(self.rho)), start=state)
        )

    def forward(self, client: Client, state: Vector) -> Upload[Vector]:
        return Upload(state)
