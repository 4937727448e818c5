"""Exact diffusion and NIDS: adapt, correct, combine."""

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.core import Citation, Client, ClientStates, Federation, Upload, Vector


class Adapted(eqx.Module):
    """One client's state: its model, and the point of its last gradient step."""

    x: Vector
    y: Vector


class ExactDiffusion(Gossip):
    r"""Everybody takes a gradient step, corrects it by the last one, and averages with the
    neighbours.

    With $\tilde W = (I + W)/2$ and $y_i = x_i$ at first:

    $$ y_i^+ = x_i - \eta \nabla f_i(x_i), \qquad x_i \leftarrow \sum_l \tilde w_{il} (x_l + y_l^+ -
    y_l), \qquad
       y_i \leftarrow y_i^+ . $$

    Everybody reaches the optimum of $\frac1m \sum_i f_i$ with a constant step, which may be as
    large as that of gradient descent. The step is the solver's learning rate (SGD without
    momentum), with the schedule's decay; batches and epochs have no effect. The graph must not
    change.

    Args:
        topology, graph: as in `DFedAvgM`.

    Example:
        >>> import fedax
        >>> method = fedax.ExactDiffusion(topology="ring")

    Source: Yuan, Ying, Zhao and Sayed, Exact Diffusion for Distributed Optimization and Learning,
    IEEE Transactions on Signal Processing 67(3), 2019. The recursion as decent-bench documents it.
    """

    is_fixed = True

    citation = Citation(
        paper="Yuan, Ying, Zhao and Sayed, Exact Diffusion, IEEE Transactions on Signal "
        "Processing 67(3), 2019",
        read=("others' code",),
    )

    def init(self, fed: Federation, w: Vector) -> ClientStates:
        return fed.client_states(Adapted(w, w))

    def send(self, client: Client, state: Adapted) -> Upload[Vector]:
        y = state.x - client.plain_learning_rate * client.gradient(state.x)
        corrected = state.x + y - state.y
        return Upload(corrected, state=Adapted(corrected, y))

    def receive(self, client: Client, state: Adapted, received: Vector) -> Adapted:
        # (I + W) / 2: what is received has the weights W, and half is the client's own
        return Adapted((state.x + received) / 2, state.y)


class NIDS(ExactDiffusion):
    r"""Exact diffusion whose first round is a gradient step without an average.

    $$ x_i^1 = x_i^0 - \eta \nabla f_i(x_i^0), \qquad
       x_i^{t+1} = \sum_l \tilde w_{il} \big( 2 x_l^t - x_l^{t-1} - \eta \nabla f_l(x_l^t) + \eta
       \nabla f_l(x_l^{t-1}) \big), $$

    with $\tilde W = (I + W)/2$. This is NIDS with the same step for everybody and its parameter of
    the graph at 1/2; the paper also has steps that differ between clients. What is received in
    round 0 is not used, but counted.

    Args:
        topology, graph: as in `DFedAvgM`.

    Example:
        >>> import fedax
        >>> method = fedax.NIDS(topology="ring")

    Source: Li, Shi and Yan, A Decentralized Proximal-Gradient Method with Network Independent
    Step-Sizes, IEEE Transactions on Signal Processing 67(17), 2019. The recursion as decent-bench
    documents it.
    """

    citation = Citation(
        paper="Li, Shi and Yan, A Decentralized Proximal-Gradient Method (NIDS), IEEE Trans. "
        "Signal Processing 67(17), 2019",
        read=("others' code",),
    )

    def receive(self, client: Client, state: Adapted, received: Vector) -> Adapted:
        return Adapted(jnp.where(client.round == 0, state.x, (state.x + received) / 2), state.y)
