"""GradientTracking: gradient descent on a graph with estimates of the mean gradient."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.core import Citation, Client, ClientStates, Federation, Upload, Vector


class Tracked(eqx.Module):
    """One client's state: its model, what it received of the neighbours' trackers, and its
    gradient at the last model.
    """

    x: Vector
    y: Vector
    g: Vector


class GradientTracking(Gossip):
    r"""DIGing: everybody averages with the neighbours and steps along an estimate of the mean
    gradient.

    $$ x_i \leftarrow \sum_{l \in N(i)} w_{il} x_l - \eta\, y_i, \qquad
       y_i \leftarrow \sum_{l \in N(i)} w_{il} y_l + \nabla f_i(x_i^+) - \nabla f_i(x_i), $$

    with $x_i^+$ the new model and $y_i = \nabla f_i(x_i)$ at first. The mean of the trackers is
    that of the gradients, always, so that with a constant step everybody reaches the optimum of
    $\frac1m \sum_i f_i$, where `DGD` stays away from it. The step is the solver's learning rate
    (SGD without momentum), with the schedule's decay; batches and epochs have no effect.

    Args:
        topology, graph: as in `DFedAvgM`.

    Example:
        >>> import fedax
        >>> method = fedax.GradientTracking(topology="torus")

    Source: Nedic, Olshevsky and Shi, Achieving Geometric Convergence for Distributed Optimization
    over Time-Varying Graphs, SIAM Journal on Optimization 27(4), 2017, Alg. 1 (DIGing), as in
    github.com/OPT4SMART/disropt (gradient_tracking.py), which is not the authors' code; Qu and Li,
    Harnessing Smoothness to Accelerate Distributed Optimization, IEEE Transactions on Control of
    Network Systems 5(3), 2018.
    """

    citation = Citation(
        paper="Nedic, Olshevsky and Shi, Achieving Geometric Convergence for Distributed "
        "Optimization, SIAM J. Optim. 27(4), 2017",
        read=("others' code",),
        equation="Alg. 1 (DIGing)",
    )

    def init(self, fed: Federation, w: Vector) -> ClientStates:
        return fed.client_states(Tracked(w, jnp.zeros_like(w), jnp.zeros_like(w)))

    def send(self, client: Client, state: Tracked) -> Upload[tuple[Vector, Vector]]:
        g = client.gradient(state.x)
        # the change of the gradient since the last round, known only at the new model
        state = dataclasses.replace(state, y=state.y + g - state.g, g=g)
        return Upload((state.x, state.y), state=state)

    def receive(self, client: Client, state: Any, received: tuple[Vector, Vector]) -> Tracked:
        x, y = received
        return Tracked(x - client.plain_learning_rate * state.y, y, state.g)
