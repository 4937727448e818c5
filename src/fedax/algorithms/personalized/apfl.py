"""APFL: personal models that are mixtures of a local model and the global one."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    Minibatch,
    ModelAndStates,
    Personal,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class Mixture(eqx.Module):
    """One client's state: its local model and the weight of it."""

    v: Vector
    alpha: Float[Array, ""]


class APFL(Algorithm[ModelAndStates]):
    r"""Adaptive personalized federated learning: FedAvg, and beside it a local model of every
    client, trained in the mixture.

    Each local step, on one minibatch, with $\bar v_i = \alpha_i v_i + (1 - \alpha_i) w_i$ and
    $\bar g_i = \nabla f_i(\bar v_i)$:

    $$ w_i \leftarrow w_i - \eta \nabla f_i(w_i), \qquad v_i \leftarrow v_i - \eta\, \alpha_i \bar
    g_i, \qquad
       \alpha_i \leftarrow \Pi_{[0, 1]}\big(\alpha_i - \eta \langle v_i - w_i, \bar g_i
       \rangle\big), $$

    $w_i$ from the global model, the others from the client's last ones; $\alpha_i \bar g_i$ is the
    gradient by $v_i$. The server averages the $w_i$, and a client uses
    $\alpha_i v_i + (1 - \alpha_i) w$. The published weights of the mean are equal
    (`weights="equal"`). The authors' code (github.com/MLOPTPSU/FedTorch) learns $\alpha_i$ once a
    round, with $0.02\, \alpha_i$ added to its gradient. Needs SGD without momentum as the solver.

    Args:
        alpha: $\alpha_i$ at first, in [0, 1]; 0 is FedAvg, 1 training alone.
        learned: whether the clients learn their $\alpha_i$.

    Example:
        >>> import fedax
        >>> method = fedax.APFL(alpha=0.5, learned=True)

    Source: Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020
    (arXiv:2003.13461), Alg. 1, with the step of $\alpha_i$ in every local step; of the sources the
    authors' code was read.
    """

    alpha: Scalar = hyper(
        0.5, low=0.0, high=1.0, doc="weight of the local model in a client's mixture, at first"
    )
    learned: bool = hyper(True, doc="whether clients learn their weight")

    citation = Citation(
        paper="Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, "
        "arXiv:2003.13461",
        read=("authors' code",),
        equation="Alg. 1",
        reductions=(
            Reduction({}, "fedavg"),
            Reduction({"alpha": 0.75, "learned": False}, "fedavg"),
        ),
    )

    def init(self, fed: Federation, w: Vector) -> ModelAndStates:
        return ModelAndStates(w, fed.client_states(Mixture(w, jnp.asarray(self.alpha, w.dtype))))

    def round(self, fed: Federation, state: ModelAndStates) -> ModelAndStates:
        return ModelAndStates(*fed.average(self.train, fed.sample(), state.w, states=state.clients))

    def personal(self, state: ModelAndStates) -> Personal:
        return Personal(self.mix, (state.w,), state.clients)

    def mix(self, client: Client, w: Vector, state: Mixture) -> Vector:
        return state.alpha * state.v + (1 - state.alpha) * w

    def train(self, client: Client, w: Vector, state: Mixture) -> Upload[Vector]:
        rate = client.plain_learning_rate
        layout = client.layout

        def step(carry: tuple[Vector, Mixture], batch: Minibatch) -> tuple[Vector, Mixture]:
            w_i, state = carry
            mixture = layout.unravel(self.mix(client, w_i, state))
            # the statistics of a batch norm are the global model's
            g_bar = layout.ravel(batch.gradient_aside(mixture))
            alpha = state.alpha
            if self.learned:
                alpha = jnp.clip(alpha - rate * ((state.v - w_i) @ g_bar), 0, 1)
            # all three steps are from the values before the minibatch
            g = layout.ravel(batch.gradient(layout.unravel(w_i)))
            return w_i - rate * g, Mixture(state.v - rate * state.alpha * g_bar, alpha)

        w_i, state = client.for_each_minibatch(step, (w, state))
        return Upload(w_i, reference=w, state=state)
