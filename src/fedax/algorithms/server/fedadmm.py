"""FedADMM: primal-dual consensus with partial participation."""

import equinox as eqx
import jax.numpy as jnp

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    LocalProblem,
    ModelAndStates,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class Pair(eqx.Module):
    """One client's state: its model and its multiplier."""

    w: Vector
    y: Vector


class FedADMM(Algorithm[ModelAndStates]):
    r"""Clients minimise their augmented Lagrangian of the consensus constraint; the server adds up
    their changes.

    $$ w_k \approx \arg\min_w f_k(w) + \langle y_k, w - \theta \rangle + \tfrac{\rho}{2} \lVert w -
    \theta \rVert^2, \qquad
       y_k^+ = y_k + \rho (w_k^+ - \theta), \qquad
       \theta \leftarrow \theta + \eta \frac{\sum_S p_k \Delta_k}{\sum_S p_k}, \quad
       \Delta_k = \Big(w_k^+ + \frac{y_k^+}{\rho}\Big) - \Big(w_k + \frac{y_k}{\rho}\Big). $$

    Local work starts at the client's own model. With `step="part"` $\eta = \sum_S p_k$, each client
    of S once however clients are drawn, which keeps $\theta = \sum_k p_k (w_k + y_k / \rho)$. With
    everyone and $\eta = 1$ this is consensus ADMM, which is also FedPD with a communication in
    every round.

    The authors' code, `form="as_released"`, is another method: local work starts at $\theta$, which
    takes the place of $w_k$ in $\Delta_k$ too, and $\eta = 1$. Then $(y_k^+ - y_k) / \rho = w_k^+ -
    \theta$, so that it is FedProx with multipliers and a server step of 2. The code has equal
    weights, $\rho = 0.01$, a local momentum of 0.5, and $\eta = 0.5$ from round 60 on.

    Args:
        rho: $\rho$, above 0.
        step: "part" (the tracking step) or "one" ($\eta = 1$); of the form "as_written".
        form: "as_written" or "as_released".

    Example:
        >>> import fedax
        >>> method = fedax.FedADMM(rho=0.1)
        >>> released = fedax.FedADMM(rho=0.01, form="as_released")

    Source: Gong, Li, Freris, FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to
    System Heterogeneity, ICDE 2022 (arXiv:2204.03529), Alg. 1, and the authors' code
    (github.com/YonghaiGong/FedADMM). Of the paper the abstract was read, so that the form
    "as_written" is checked against the invariant and the optimum of consensus ADMM alone. FedPD:
    Zhang et al., IEEE TSP 2021.
    """

    rho: Scalar = hyper(1.0, low=0.0, open_low=True, doc="weight of the quadratic")
    step: str = hyper("part", choices=("part", "one"), doc="size of the server's step")
    form: str = hyper(
        "as_written",
        choices=("as_written", "as_released"),
        later=True,
        doc="start of local work and of a client's change",
    )

    citation = Citation(
        paper="Gong, Li, Freris, FedADMM: A Robust Federated Deep Learning Framework, ICDE 2022 "
        "(arXiv:2204.03529)",
        read=("abstract", "authors' code"),
        equation="Alg. 1",
    )

    def init(self, fed: Federation, w: Vector) -> ModelAndStates:
        return ModelAndStates(w, fed.client_states(Pair(w, jnp.zeros_like(w))))

    def round(self, fed: Federation, state: ModelAndStates) -> ModelAndStates:
        cohort = fed.sample().distinct
        change, states = fed.average(self.primal_dual, cohort, state.w, states=state.clients)
        tracks = self.form == "as_written" and self.step == "part"
        step = fed.answered.coverage if tracks else 1
        return ModelAndStates(state.w + step * change, states)

    def primal_dual(self, client: Client, theta: Vector, state: Pair) -> Upload[Vector]:
        start = state.w if self.form == "as_written" else theta
        w = client.minimize(LocalProblem(anchor=theta, prox=self.rho, linear=state.y), start=start)
        y = state.y + self.rho * (w - theta)
        return Upload(w + y / self.rho - start - state.y / self.rho, state=Pair(w, y))
