"""pFedMe: personal models by Moreau envelopes."""

from typing import Any, ClassVar

import jax
import optax

from fedax.core import (
    Algorithm,
    Card,
    Client,
    Federation,
    Minibatch,
    Personal,
    Phase,
    Remembering,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class PFedMe(Algorithm[Remembering]):
    r"""pFedMe: $\min_w \sum_k p_k F_k(w)$ with $F_k(w) = \min_\theta f_k(\theta) + \frac{\lambda}{2}\lVert \theta - w \rVert^2$.

    With every minibatch D of local work, from $w_k = \theta_k = w$ on:

    $$ \theta_k \leftarrow \theta_k - \eta_p \big(\nabla f_k(\theta_k; D) + \lambda (\theta_k - w_k)\big) \; K \text{ times}, \quad
       w_k \leftarrow w_k - \eta \lambda (w_k - \theta_k), $$

    then $w \leftarrow (1 - \beta) w + \beta \sum_S p_k w_k / \sum_S p_k$, with $\eta$ the
    solver's learning rate. A client uses its last
    $\theta_k$. Needs SGD without momentum as the solver.

    Args:
        lam: $\lambda$, above 0.
        personal_lr: $\eta_p$, above 0.
        inner_steps: K, at least 1.
        beta: $\beta$, above 0; 1 in the published experiments.

    Example:
        >>> import fedax
        >>> method = fedax.PFedMe(lam=15.0, personal_lr=0.01)

    Source: Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Alg. 1.
    """

    lam: Scalar = hyper(15.0, low=0.0, open_low=True, doc="pull of the personal models")
    personal_lr: Scalar = hyper(0.01, low=0.0, open_low=True, doc="step size of the personal models")
    inner_steps: int = hyper(5, low=1, doc="steps of the personal model on every minibatch")
    beta: Scalar = hyper(1.0, low=0.0, open_low=True, doc="how much of the mean the new model has")

    card: ClassVar[Card] = Card(
        title="PFedMe",
        paper="Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020",
        equation="Alg. 1",
        phases=(Phase("train", down=(1, 0), up=(1, 0), models=True),),
        memory="personal model: dim numbers",
    )

    def init(self, fed: Federation, w: Vector) -> Remembering:
        return Remembering(w, fed.memory(w))

    def round(self, fed: Federation, state: Remembering) -> Remembering:
        mean, memory = fed.average(self.train, fed.sample(), state.w, memory=state.memory)
        return Remembering(state.w + self.beta * (mean - state.w), memory)

    def personal(self, state: Remembering) -> Personal:
        return Personal.remembered(state.memory)

    def gradients(self, steps: float, epoch: float) -> float:
        return self.inner_steps * steps

    def train(self, client: Client, w: Vector, _: Vector) -> Upload[Vector]:
        rate, move, layout = client.learning_rate, optax.tree.add_scale, client.layout

        def step(carry: tuple[Any, Any], batch: Minibatch) -> tuple[Any, Any]:
            w, theta = carry

            def inner(_: Any, theta: Any) -> Any:
                slope = move(batch.gradient(theta), self.lam, optax.tree.sub(theta, w))
                return move(theta, -self.personal_lr, slope)

            theta = jax.lax.fori_loop(0, self.inner_steps, inner, theta)
            return move(w, -rate * self.lam, optax.tree.sub(w, theta)), theta

        w_k, theta = client.run(step, (layout.unravel(w),) * 2)
        return Upload(layout.ravel(w_k), memory=layout.ravel(theta))
