"""SCAFFOLDM: SCAFFOLD with momentum from the server."""

import equinox as eqx
import jax.numpy as jnp

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    ClientStates,
    Federation,
    LocalProblem,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
    scaled_gradient,
)


class ScaffoldMState(eqx.Module):
    """The global model x, the last mean direction g, the server's control variate c, and the
    clients' own.
    """

    w: Vector
    g: Vector
    c: Vector
    clients: ClientStates


class SCAFFOLDM(Algorithm[ScaffoldMState]):
    r"""SCAFFOLD whose local steps mix in the last mean direction of all clients.

    $$ y_k \leftarrow y_k - \eta_l \big( \beta\, (g_k(y_k) - c_k + c) + (1 - \beta)\, g \big)
    \text{ in every of the } K \text{ steps}, \qquad
       c_k^+ = \text{mean of the gradients } g_k(y_k) \text{ in these steps}, $$
    $$ g \leftarrow \frac{1}{K \eta_l} \operatorname{mean}_S (x - y_k), \qquad
       x \leftarrow x + \eta_g \operatorname{mean}_S (y_k - x), \qquad
       c \leftarrow c + \sum_S p_k (c_k^+ - c_k). $$

    The gradients' mean follows from the model's change, so that no step stores anything. As in
    `SCAFFOLD` the weights $p_k$ are those of the objective, with each client of S once. The model's
    step in the direction g has the length $\gamma = \eta_g K \eta_l$. All of g, c and $c_k$ start
    at zero. Needs SGD without momentum as the solver.

    Without control variates it would be `FedCM`. With $\beta = 1$ it is `SCAFFOLD` with option II.

    Args:
        beta: $\beta$, in (0, 1]; 1 is SCAFFOLD with option II.
        lr: $\eta_g$, above 0.

    Example:
        >>> import fedax
        >>> method = fedax.SCAFFOLDM(beta=0.2)

    Source: SCAFFOLD-M of Cheng, Huang, Wu and Yuan, Momentum Benefits Non-IID Federated Learning
    Simply and Provably, ICLR 2024 (arXiv:2306.16504). Of it the abstract, the introduction and the
    reviews were read, not the algorithm, and no code of its authors was found. Read were two
    methods after it. FedWMSAM (Li et al., NeurIPS 2025, arXiv:2511.22080, text and code) has this
    local step, g, server's step and c but for its sharpness-aware steps, and its proof follows that
    of SCAFFOLD-M; its Theorem 1 begins with $c_k$ as gradients at x, its code with zero. That $c_k$
    is the mean gradient is so in others' code for PAdaMFed-VR (Yan et al., ICLR 2025); FedWMSAM's
    code has SCAFFOLD's option II, with the momentum in it.
    """

    beta: Scalar = hyper(
        0.1, low=0.0, open_low=True, high=1.0, doc="weight of the client's corrected gradient"
    )
    lr: Scalar = hyper(1.0, low=0.0, open_low=True, doc="server learning rate")

    citation = Citation(
        paper="Cheng, Huang, Wu and Yuan, Momentum Benefits Non-IID Federated Learning Simply and "
        "Provably, ICLR 2024",
        read=("abstract", "others' code"),
        by_examples=True,
        exact=True,
        reductions=(Reduction({"beta": 1.0}, "scaffold"),),
    )

    def init(self, fed: Federation, w: Vector) -> ScaffoldMState:
        zero = jnp.zeros_like(w)
        return ScaffoldMState(w, zero, zero, fed.client_states(zero))

    def round(self, fed: Federation, state: ScaffoldMState) -> ScaffoldMState:
        down = state.w, state.g, state.c
        (dx, g, dc), states = fed.average(
            self.train, fed.sample().distinct, *down, states=state.clients
        )
        c = state.c + fed.answered.coverage * dc
        return ScaffoldMState(state.w + self.lr * dx, g, c, states)

    def train(
        self, client: Client, x: Vector, g: Vector, c: Vector, c_k: Vector
    ) -> Upload[tuple[Vector, Vector, Vector]]:
        linear = self.beta * (c - c_k) + (1 - self.beta) * g
        problem = LocalProblem(linear=linear, step_gradient=scaled_gradient(self.beta))
        change = client.minimize(problem, start=x) - x
        direction = client.mean_gradient(-change)
        # the mean gradient of the steps: beta times it and the linear term make the direction
        new_c_k = (direction - linear) / self.beta
        return Upload((change, direction, new_c_k - c_k), state=new_c_k, is_change=True)
