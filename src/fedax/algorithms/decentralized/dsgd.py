"""DSGD: a gradient step and an average with the neighbours."""

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.core import Citation, Client, Upload, Vector


class DSGD(Gossip):
    r"""Decentralized parallel SGD: everybody averages with the neighbours and takes a stochastic
    step from its own old model.

    $$ x_i \leftarrow \sum_{l \in N(i)} w_{il} x_l - \eta\, g_i(x_i). $$

    The step is the local solver's work, so one gradient a round, as published, is
    `Schedule(steps=1)` with plain `SGD`.

    Args:
        topology, graph: as in `DFedAvgM`.

    Example:
        >>> import fedax
        >>> method, schedule = fedax.DSGD(topology="torus"), fedax.Schedule(steps=1)

    Source: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS
    2017, Alg. 1. The recursion is that of DGD, as decent-bench documents it, with stochastic
    gradients.
    """

    needs = ("both", "row")

    citation = Citation(
        paper="Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, "
        "NeurIPS 2017",
        read=("others' code",),
        equation="Alg. 1",
    )

    def send(self, client: Client, state: Vector) -> Upload[Vector]:
        return Upload(state)

    def receive(self, client: Client, state: Vector, received: Vector) -> Vector:
        return received + client.minimize(start=state) - state
