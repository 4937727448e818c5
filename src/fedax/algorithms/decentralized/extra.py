"""EXTRA: gradient descent on a graph that corrects itself by its last two points."""

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.core import Citation, Client, ClientStates, Federation, Upload, Vector


class TwoPoints(eqx.Module):
    """One client's state: its model, the half-mixed last one, and the gradient there."""

    x: Vector
    back: Vector
    g: Vector


class EXTRA(Gossip):
    r"""An exact first-order method with a constant step and one vector a message.

    With $\tilde W = (I + W)/2$, and $x_i^1 = \sum_l w_{il} x_l^0 - \eta \nabla f_i(x_i^0)$ in round
    0:

    $$ x_i^{t+1} = x_i^t + \sum_l w_{il} x_l^t - \sum_l \tilde w_{il} x_l^{t-1}
       - \eta \big( \nabla f_i(x_i^t) - \nabla f_i(x_i^{t-1}) \big). $$

    Everybody reaches the optimum of $\frac1m \sum_i f_i$, where `DGD` stays away from it, with half
    the messages of `GradientTracking`. The step is the solver's learning rate (SGD without
    momentum), with the schedule's decay; batches and epochs have no effect. The graph must not
    change.

    Args:
        topology, graph: as in `DFedAvgM`.

    Example:
        >>> import fedax
        >>> method = fedax.EXTRA(topology="ring")

    Source: Shi, Ling, Wu and Yin, EXTRA: An Exact First-Order Algorithm for Decentralized Consensus
    Optimization, SIAM Journal on Optimization 25(2), 2015. The recursion as decent-bench documents
    it.
    """

    is_fixed = True

    citation = Citation(
        paper="Shi, Ling, Wu and Yin, EXTRA, SIAM Journal on Optimization 25(2), 2015",
        read=("others' code",),
    )

    def init(self, fed: Federation, w: Vector) -> ClientStates:
        return fed.client_states(TwoPoints(w, w, jnp.zeros_like(w)))

    def send(self, client: Client, state: TwoPoints) -> Upload[Vector]:
        return Upload(state.x)

    def receive(self, client: Client, state: TwoPoints, received: Vector) -> TwoPoints:
        g = client.gradient(state.x)
        x = state.x + received - state.back - client.plain_learning_rate * (g - state.g)
        # the second entry is (I + W) / 2 of this round's models, which the next round subtracts
        return TwoPoints(x, (state.x + received) / 2, g)
