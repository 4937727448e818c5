"""PushSum: stochastic gradient push on directed graphs."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.core import Citation, Client, ClientStates, Federation, Upload, Vector


class Pushed(eqx.Module):
    """One client's state: its biased vector, and the scalar that its model is divided by."""

    x: Vector
    s: Float[Array, ""]

    @property
    def z(self) -> Vector:
        """The model."""
        return self.x / self.s


class PushSum(Gossip):
    r"""Everybody divides its vector and a scalar among those it sends to; their quotient is the
    model.

    $$ x_i \leftarrow x_i + \Delta_i, \quad \Delta_i = \text{local solver from } z_i \text{, less }
    z_i; \qquad
       (x_i, s_i) \leftarrow \sum_l w_{il} (x_l, s_l), \qquad z_i = x_i / s_i, $$

    with $s_i = 1$ at first. W needs columns that sum to 1 only, so that links may go one way, and
    messages may be lost if the sender keeps them (`Graph.lossy(repair="sender")`). Where W is
    doubly stochastic all $s_i$ stay 1, and this is `DFedAvgM`. With `Schedule(steps=1)` it is
    stochastic gradient push as published; with more steps every client trains longer between
    messages.

    Args:
        topology, graph: as in `DFedAvgM`; the graph may be directed, with column sums of 1.

    Example:
        >>> import fedax, networkx
        >>> cycle = fedax.Graph.directed(networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]))
        >>> method, schedule = fedax.PushSum(graph=cycle), fedax.Schedule(steps=1)

    Source: Assran, Loizou, Ballas and Rabbat, Stochastic Gradient Push for Distributed Deep
    Learning, ICML 2019, as in the authors' code
    (github.com/facebookresearch/stochastic_gradient_push, gossip/distributed.py).
    """

    needs = ("both", "column")

    citation = Citation(
        paper="Assran, Loizou, Ballas and Rabbat, Stochastic Gradient Push for Distributed Deep "
        "Learning, ICML 2019",
        read=("authors' code",),
    )

    def init(self, fed: Federation, w: Vector) -> ClientStates:
        return fed.client_states(Pushed(w, jnp.ones((), w.dtype)))

    def nodes(self, state: ClientStates) -> ClientStates:
        return state.each(lambda node: node.z)

    def send(self, client: Client, state: Pushed) -> Upload[tuple[Vector, Float[Array, ""]]]:
        return Upload((state.x + client.minimize(start=state.z) - state.z, state.s))

    def receive(
        self, client: Client, state: Pushed, received: tuple[Vector, Float[Array, ""]]
    ) -> Pushed:
        return Pushed(*received)
