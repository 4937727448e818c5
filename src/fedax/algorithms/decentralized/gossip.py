"""One model per client and a graph between them: what the methods without a server share."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx

from fedax.core import (
    Algorithm,
    Client,
    ClientStates,
    Federation,
    InvalidInput,
    Personal,
    Upload,
    Vector,
    hyper,
)
from fedax.graphs import TOPOLOGIES, Graph


class Gossip(Algorithm[ClientStates]):
    """A round is one exchange: everybody sends, then everybody receives. The model is the mean of
    all clients' models.

    A client's state is its model, or holds it as `x`.

    Args:
        graph: who talks to whom; None makes the `topology` for as many clients as there are.
    """

    needs: ClassVar[tuple[str, ...]] = ("both",)
    """Which sums of a graph's weights have to be 1, see `Graph.sums`."""

    is_fixed: ClassVar[bool] = False
    """Whether the graph must not change, for methods whose state is of the round before."""

    topology: str = hyper("ring", choices=TOPOLOGIES, doc="graph of the clients, if none is given")
    graph: Any = eqx.field(default=None, kw_only=True)  # checked below, for a message in words

    def __check_init__(self) -> None:
        if self.graph is None:
            return
        name = f"{type(self).__name__}(graph=...)"
        if not isinstance(self.graph, Graph):
            hint = "A name is written as topology=."
            raise InvalidInput.of(name, self.graph, "a fedax.Graph, or None", hint)
        # before the sums, which lost messages change
        if self.graph.changes and self.is_fixed:
            allowed = "graphs that do not change and drop no messages"
            raise InvalidInput.of(name, self.graph.name, allowed)
        if self.graph.sums not in self.needs:
            raise InvalidInput.of(name, self.graph.name, f"graphs with sums={self.needs[-1]!r}")

    def init(self, fed: Federation, w: Vector) -> ClientStates:
        return fed.client_states(w)

    def round(self, fed: Federation, state: ClientStates) -> ClientStates:
        return fed.exchange(self.network(fed.clients), self.send, self.receive, state)

    def network(self, clients: int) -> Graph:
        """Returns the graph of a number of clients."""
        return self.graph or Graph.named(self.topology, clients)

    def model(self, state: ClientStates) -> Vector:
        return self.nodes(state).mean()

    @property
    def equal_weights(self) -> bool:
        return True  # mixing matrices are doubly stochastic

    def personal(self, state: ClientStates) -> Personal:
        return Personal.remembered(self.nodes(state))

    def nodes(self, state: ClientStates) -> ClientStates:
        return state.each(lambda node: getattr(node, "x", node))

    @abstractmethod
    def send(self, client: Client, state: Any) -> Upload[Any]:
        """Returns the upload to the neighbours."""

    @abstractmethod
    def receive(self, client: Client, state: Any, received: Any) -> Any:
        """Returns the client's state after the exchange."""
