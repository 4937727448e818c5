"""GTSGD: stochastic gradient tracking on a graph, with any number of local steps."""

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.core import Citation, Client, ClientStates, Federation, LocalProblem, Upload, Vector


class Corrected(eqx.Module):
    """One client's state: its model, and the correction of its gradients."""

    x: Vector
    correction: Vector


class GTSGD(Gossip):
    r"""Local SGD on a graph, with a correction of every client's gradients that tracks the mean
    gradient.

    K local steps from $x_i$, then one exchange of the model and of the mean direction:

    $$ z_i \leftarrow z_i - \eta\, (g_i(z_i) + c_i), \qquad d_i = \frac{x_i - z_i}{K \eta}, \qquad
       x_i \leftarrow \sum_{l \in N(i)} w_{il} z_l, \qquad c_i \leftarrow c_i - d_i + \sum_{l \in
       N(i)} w_{il} d_l . $$

    The corrections are zero at first, and so is their sum always. With `Schedule(steps=1)` this is
    GT-SGD (DSGT): there $y_i = g_i + c_i$ is the tracker,
    $x_i \leftarrow \sum_l w_{il} (x_l - \eta y_l)$ and
    $y_i \leftarrow \sum_l w_{il} y_l + g_i^+ - g_i$. With more steps it is K-GT with a
    communication step of 1: everybody reaches the optimum of $\frac1m \sum_i f_i$ for every K, up
    to the noise of minibatches. Needs SGD without momentum as the solver.

    Args:
        topology, graph: as in `DFedAvgM`.

    Example:
        >>> import fedax
        >>> method, schedule = fedax.GTSGD(topology="ring"), fedax.Schedule(steps=1)

    Source: Pu and Nedic, Distributed Stochastic Gradient Tracking Methods, Mathematical Programming
    187, 2021, Sec. 2 (DSGT); local steps: Liu, Lin, Koloskova and Stich, Decentralized Gradient
    Tracking with Local Steps, Optimization Methods and Software, 2024 (arXiv:2301.01313), Alg. 1
    (K-GT), as in github.com/team-decent/decent-bench (p2p/_kgt.py), which is not the authors' code.
    """

    citation = Citation(
        paper="Pu and Nedic, Distributed Stochastic Gradient Tracking Methods, Mathematical "
        "Programming 187, 2021",
        read=("others' code",),
        equation="Sec. 2 (DSGT); with local steps Liu et al. (arXiv:2301.01313), Alg. 1",
    )

    def init(self, fed: Federation, w: Vector) -> ClientStates:
        return fed.client_states(Corrected(w, jnp.zeros_like(w)))

    def send(self, client: Client, state: Corrected) -> Upload[tuple[Vector, Vector]]:
        z = client.minimize(LocalProblem(linear=state.correction), start=state.x)
        d = client.mean_gradient(state.x - z)
        return Upload((z, d), state=Corrected(z, state.correction - d))

    def receive(
        self, client: Client, state: Corrected, received: tuple[Vector, Vector]
    ) -> Corrected:
        x, d = received
        return Corrected(x, state.correction + d)
