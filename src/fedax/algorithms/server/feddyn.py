"""FedDyn: dynamic regularisation."""

import equinox as eqx
import jax.numpy as jnp

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    ClientStates,
    Federation,
    LocalProblem,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class DynState(eqx.Module):
    """The server model, the server's state h, and the clients' linear terms."""

    w: Vector
    h: Vector
    clients: ClientStates


class FedDyn(Algorithm[DynState]):
    r"""Each client's loss is bent so that stationary points of the local problems agree with those
    of the global one.

    $$ w_k \approx \arg\min_v\; f_k(v) - \langle h_k, v \rangle + \frac{\alpha}{2} \lVert v - w
    \rVert^2, \qquad
       h_k \leftarrow h_k - \alpha (w_k - w), $$
    $$ h \leftarrow h - \alpha \sum_S p_k (w_k - w), \qquad w \leftarrow \frac{\sum_S p_k
    w_k}{\sum_S p_k} - \frac{h}{\alpha}. $$

    The paper has equal weights $p_k = 1/N$; here they are those of the objective, with each client
    of S once, however clients are drawn, so that $h = \sum_k p_k h_k$ vanishes at the optimum of
    $\sum_k p_k f_k$. The released code scales $\alpha$ by the clients' sizes instead. With an
    asynchronous server only `weight="constant"` keeps that sum exact.

    Args:
        alpha: $\alpha$, above 0.

    Example:
        >>> import fedax
        >>> method = fedax.FedDyn(alpha=0.01)

    Source: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Alg. 1, as
    in the authors' code (github.com/alpemreacar/FedDyn, utils_methods.py).
    """

    alpha: Scalar = hyper(0.1, low=0.0, open_low=True, doc="weight of the regulariser")

    citation = Citation(
        paper="Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021",
        read=("authors' code",),
        equation="Alg. 1",
    )

    def init(self, fed: Federation, w: Vector) -> DynState:
        return DynState(w, jnp.zeros_like(w), fed.client_states(jnp.zeros_like(w)))

    def round(self, fed: Federation, state: DynState) -> DynState:
        cohort = fed.sample().distinct
        mean, states = fed.average(self.train, cohort, state.w, states=state.clients)
        # h is a sum over all clients, of which the cohort's part moves
        h = state.h - self.alpha * fed.answered.coverage * (mean - state.w)
        return DynState(mean - h / self.alpha, h, states)

    def train(self, client: Client, w: Vector, h_k: Vector) -> Upload[Vector]:
        w_k = client.minimize(LocalProblem(anchor=w, linear=-h_k, prox=self.alpha), start=w)
        return Upload(w_k, state=h_k - self.alpha * (w_k - w))
