"""AD-PSGD: whoever has a gradient averages with one neighbour and applies it, without waiting."""

from typing import ClassVar

import equinox as eqx

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.core import Card, Client, Federation, Memory, Upload, Vector


class Node(eqx.Module):
    """One client's memory: its model, and the model on which it computes its gradient."""

    x: Vector
    begun: Vector


class ADPSGD(Gossip):
    r"""A client whose gradient is done averages with one random neighbour, and applies the gradient
    to the mean.

    A round is one wake-up. Client i wakes, and meets its neighbour j:

    $$ x_i, x_j \leftarrow \tfrac12 (x_i + x_j), \qquad x_i \leftarrow x_i - \eta\, g_i(\hat x_i),
    \qquad \hat x_i \leftarrow x_i. $$

    The gradient is that of $\hat x_i$, the model with which client i began at its last wake-up.
    Its neighbours have averaged with $x_i$ since, so the gradient is stale; it is applied in full.
    j goes on with the gradient that it is computing.

    With `Schedule(asynchronous=fedax.Asynchronous(devices))` clients wake when their work is done
    on the virtual clock. Without it every wake-up is that of a uniformly drawn client. The step is
    the local solver's work, so one gradient, as published, is `Schedule(steps=1)` with plain `SGD`.

    Args:
        topology, graph: as in `DFedAvgM`; the graph's links count, its weights do not.

    Example:
        >>> import fedax
        >>> devices = fedax.Devices(speed={"name": "lognormal", "median": 100.0, "sigma": 1.0})
        >>> clock = fedax.Asynchronous(devices)
        >>> method, schedule = fedax.ADPSGD(), fedax.Schedule(steps=1, asynchronous=clock)

    Source: Lian, Zhang, Zhang and Liu, Asynchronous Decentralized Parallel Stochastic Gradient
    Descent, ICML 2018, Alg. 1. The algorithm was not read there, but in the description of
    A(DP)2SGD (Xu, Zhang and Wang, 2020), which has the same update, and in two public
    implementations: KungFu's `PairAveragingOptimizer`, which changes the model of the client that
    woke only, and `ad_psgd.py` of facebookresearch/stochastic_gradient_push, in which both average.
    """

    card: ClassVar[Card] = Card(
        paper="Lian et al., Asynchronous Decentralized Parallel Stochastic Gradient Descent, "
        "ICML 2018",
        equation="Alg. 1, from public implementations; paper not read",
    )

    def init(self, fed: Federation, w: Vector) -> Memory:
        return fed.memory(Node(w, w))

    def round(self, fed: Federation, state: Memory) -> Memory:
        graph = self.network(fed.clients)
        return fed.exchange_pair(graph, self.send, self.receive, self.answer, state)

    def send(self, client: Client, state: Node) -> Upload[Vector]:
        return Upload(state.x)

    def receive(self, client: Client, state: Node, received: Vector) -> Node:
        # the step of the older model, added to the mean of the pair
        x = received + client.minimize(start=state.begun) - state.begun
        return Node(x, begun=x)

    def answer(self, client: Client, state: Node, received: Vector) -> Node:
        """Takes the mean, and goes on with the gradient that it computes."""
        return Node(received, state.begun)
