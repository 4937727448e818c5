"""DFedAvgM: federated averaging with momentum on a graph."""

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.core import Citation, Client, Upload, Vector


class DFedAvgM(Gossip):
    r"""Everybody trains, then averages with the neighbours on a graph; there is no server.

    $$ z_i = \text{local solver on } f_i \text{ from } x_i, \qquad x_i \leftarrow \sum_{l \in N(i)}
    w_{il} z_l. $$

    The paper's local solver is SGD with heavy-ball momentum that starts afresh in every round:
    `SGD(learning_rate, momentum=0.9)`. The global model is the mean of the clients' models.
    Everybody takes part in every round and counts alike.

    Args:
        topology: the graph, if none is given: "ring", "torus", "grid", "exponential", "star",
            "complete", "isolated".
        graph: a `fedax.graphs.Graph`.

    Example:
        >>> import fedax
        >>> method = fedax.DFedAvgM(graph=fedax.Graph.random_regular(20, 4))

    Source: Sun, Li and Wang, Decentralized Federated Averaging, 2021, Alg. 1, eq. (4), (5).
    """

    needs = ("both", "row")

    citation = Citation(
        paper="Sun, Li and Wang, Decentralized Federated Averaging, 2021",
        read=("paper",),
        equation="Alg. 1, eq. (4), (5)",
    )

    def send(self, client: Client, state: Vector) -> Upload[Vector]:
        return Upload(client.minimize(start=state))

    def receive(self, client: Client, state: Vector, received: Vector) -> Vector:
        return received
