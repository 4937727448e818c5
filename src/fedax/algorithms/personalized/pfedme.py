"""pFedMe: personal models by Moreau envelopes."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    Minibatch,
    ModelAndStates,
    Personal,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class Envelope(eqx.Module):
    """One client's state: its personal model, what its last work changed of the global one, and
    whether it ever worked.
    """

    theta: Vector
    change: Vector
    visited: Float[Array, ""]


class PFedMe(Algorithm[ModelAndStates]):
    r"""pFedMe: $\min_w \sum_k p_k F_k(w)$ with
    $F_k(w) = \min_\theta f_k(\theta) + \frac{\lambda}{2}\lVert \theta - w \rVert^2$.

    With every minibatch D of local work, from $w_k = \theta_k = w$ on:

    $$ \theta_k \leftarrow \theta_k - \eta_p \big(\nabla f_k(\theta_k; D) + \lambda (\theta_k - w_k)
    + \delta \theta_k\big)
       \; K \text{ times}, \quad w_k \leftarrow w_k - \eta \lambda (w_k - \theta_k), $$

    then $w \leftarrow (1 - \beta) w + \beta \sum_S p_k w_k / \sum_S p_k$, with $\eta$ the solver's
    learning rate. As written, all clients work in every round, and the drawn ones S send; the
    paper's mean over S has equal weights, which is a schedule with `weights="equal"`, and its
    released code has $n_k$. A client uses its last $\theta_k$, and the global model before its
    first work. With `trained="all"` the drawn clients upload their models, and all clients the
    batch statistics that a server averages. Needs SGD without momentum as the solver.

    The code released for pFedMe has `weight_decay=0.001`; that released for FedBC has
    `trained="drawn"` too.

    Args:
        lam: $\lambda$, above 0.
        personal_lr: $\eta_p$, above 0.
        inner_steps: K, at least 1.
        beta: $\beta$, above 0; 1 in the published experiments.
        weight_decay: $\delta$, at least 0; not in the paper.
        trained: "all" clients in every round (Alg. 1, line 3), or the "drawn" ones only.

    Example:
        >>> import fedax
        >>> method = fedax.PFedMe(lam=15.0, personal_lr=0.01)

    Source: Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020,
    Alg. 1, as in the authors' code (github.com/CharlieDinh/pFedMe).
    """

    lam: Scalar = hyper(15.0, low=0.0, open_low=True, doc="pull of the personal models")
    personal_lr: Scalar = hyper(
        0.01, low=0.0, open_low=True, doc="step size of the personal models"
    )
    inner_steps: int = hyper(5, low=1, doc="steps of the personal model on every minibatch")
    beta: Scalar = hyper(1.0, low=0.0, open_low=True, doc="part of the mean in the new model")
    weight_decay: Scalar = hyper(
        0.0, low=0.0, doc="weight decay in the steps of the personal models"
    )
    trained: str = hyper("all", choices=("all", "drawn"), doc="clients that work in a round")

    citation = Citation(
        paper="Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes, "
        "NeurIPS 2020",
        read=("authors' code",),
        equation="Alg. 1",
    )

    def init(self, fed: Federation, w: Vector) -> ModelAndStates:
        return ModelAndStates(
            w, fed.client_states(Envelope(w, jnp.zeros_like(w), jnp.zeros((), w.dtype)))
        )

    def round(self, fed: Federation, state: ModelAndStates) -> ModelAndStates:
        cohort = fed.sample()
        all_train = self.trained == "all"
        change, states = fed.average(
            self.train, fed.everyone if all_train else cohort, state.w, states=state.clients
        )
        # all clients have trained, and only the drawn ones send
        if all_train:
            change, states = fed.average(self.send, cohort, states=states)
        return ModelAndStates(state.w + self.beta * change, states)

    def personal(self, state: ModelAndStates) -> Personal:
        return Personal(self.select_model, (state.w,), state.clients)

    def select_model(self, client: Client, w: Vector, state: Envelope) -> Vector:
        return jnp.where(state.visited > 0, state.theta, w)

    def train(self, client: Client, start: Vector, _: Envelope) -> Upload[Any]:
        rate = client.plain_learning_rate
        add_scale = optax.tree.add_scale
        layout = client.layout

        def step(carry: tuple[Any, Any], batch: Minibatch) -> tuple[Any, Any]:
            w, theta = carry

            def inner(theta: Any) -> Any:
                gradient = add_scale(batch.gradient(theta), self.lam, optax.tree.sub(theta, w))
                return add_scale(
                    theta, -self.personal_lr, add_scale(gradient, self.weight_decay, theta)
                )

            theta = client.repeat(self.inner_steps, inner, theta)
            return add_scale(w, -rate * self.lam, optax.tree.sub(w, theta)), theta

        w, theta = client.for_each_minibatch(step, (layout.unravel(start),) * 2)
        state = Envelope(layout.ravel(theta), layout.ravel(w) - start, jnp.ones((), start.dtype))
        change = () if self.trained == "all" else state.change
        return Upload(change, state=state, is_change=True)

    def send(self, client: Client, state: Envelope) -> Upload[Vector]:
        return Upload(state.change, state=state)
