"""GTAdam: Adam on a graph, on the tracked mean gradient."""

import jax.numpy as jnp

from fedax.algorithms.decentralized.gradienttracking import GradientTracking, Tracked
from fedax.core import Citation, Client, ClientStates, Federation, Scalar, Vector, hyper


class TrackedMoments(Tracked):
    """The same, and the moments of the tracker."""

    m: Vector
    v: Vector


class GTAdam(GradientTracking):
    r"""As `GradientTracking`, with steps along the moments of the trackers $y_i$.

    $$ m_i \leftarrow \beta_1 m_i + (1 - \beta_1)\, y_i, \qquad
       v_i \leftarrow \min(\beta_2 v_i + (1 - \beta_2)\, y_i^2,\; G), \qquad
       x_i \leftarrow \sum_{l \in N(i)} w_{il} x_l - \eta \frac{m_i}{\sqrt{v_i} + \varepsilon}. $$

    No bias correction; both moments are zero at first, and $\varepsilon$ stands outside the root as
    in the authors' package. The step $\eta$ is the solver's learning rate (SGD without momentum),
    with the schedule's decay.

    Args:
        topology, graph: as in `DFedAvgM`.
        b1, b2: $\beta_1$ and $\beta_2$, in [0, 1).
        eps: $\varepsilon$, above 0.
        most: G, above 0; 10^6 in the authors' package.

    Example:
        >>> import fedax
        >>> method, solver = fedax.GTAdam(topology="ring"), fedax.SGD(0.001)

    Source: Carnevale, Farina, Notarnicola and Notarstefano, GTAdam: Gradient Tracking with Adaptive
    Momentum for Distributed Online Optimization, IEEE Transactions on Control of Network Systems
    10(3), 2023 (arXiv:2009.01745), Alg. 1, as in the authors' package
    (github.com/OPT4SMART/disropt, branch devel_tensorflow, gtadam.py).
    """

    b1: Scalar = hyper(0.9, low=0.0, high=1.0, open_high=True, doc="decay of the first moment")
    b2: Scalar = hyper(0.999, low=0.0, high=1.0, open_high=True, doc="decay of the second moment")
    eps: Scalar = hyper(1e-8, low=0.0, open_low=True, doc="term that keeps the step short")
    most: Scalar = hyper(1e6, low=0.0, open_low=True, doc="bound of the second moment")

    citation = Citation(
        paper="Carnevale et al., GTAdam: Gradient Tracking with Adaptive Momentum, IEEE TCNS "
        "10(3), 2023 (arXiv:2009.01745)",
        read=("authors' code",),
        equation="Alg. 1",
    )

    def init(self, fed: Federation, w: Vector) -> ClientStates:
        return fed.client_states(TrackedMoments(w, *(jnp.zeros_like(w),) * 4))

    def receive(
        self, client: Client, state: TrackedMoments, received: tuple[Vector, Vector]
    ) -> TrackedMoments:
        m = self.b1 * state.m + (1 - self.b1) * state.y
        v = jnp.minimum(self.b2 * state.v + (1 - self.b2) * state.y**2, self.most)
        step = client.plain_learning_rate * m / (jnp.sqrt(v) + self.eps)
        return TrackedMoments(received[0] - step, received[1], state.g, m, v)
