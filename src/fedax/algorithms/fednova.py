"""FedNova: normalised averaging under unequal work."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Algorithm, Card, Client, Federation, Phase, Reduction, Upload, Vector


class FedNova(Algorithm[Vector]):
    r"""Clients that take more steps do not count more.

    $$ d_k = \frac{w - w_k}{\lVert a_k \rVert_1}, \qquad
       \tau_{\text{eff}} = \frac{\sum_S p_k \lVert a_k \rVert_1}{\sum_S p_k}, \qquad
       w \leftarrow w - \tau_{\text{eff}} \frac{\sum_S p_k d_k}{\sum_S p_k}, $$

    where $\lVert a_k \rVert_1$ is the sum of the weights of the client's gradients in its change: the number of steps $\tau_k$ for
    SGD, $\frac{1}{1-\theta}\big(\tau_k - \frac{\theta (1 - \theta^{\tau_k})}{1-\theta}\big)$ with momentum $\theta$. With equal
    work this is FedAvg. Needs SGD as the solver.

    Example:
        >>> import fedax
        >>> method = fedax.FedNova()

    Source: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
    eq. (6).
    """

    card: ClassVar[Card] = Card(
        title="FedNova",
        paper="Wang et al., Tackling the Objective Inconsistency Problem, NeurIPS 2020",
        equation="eq. (6)",
        phases=(Phase("train", down=(1, 0), up=(1, 1)),),
        reductions=(Reduction({}, "fedavg", equal_sizes=True),),
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        direction, steps = fed.average(self.train, fed.sample(), state)
        return state - steps * direction

    def train(self, client: Client, w: Vector) -> Upload[tuple[Vector, Float[Array, ""]]]:
        accumulated = client.solver.accumulated(jnp.asarray(client.steps, w.dtype))
        return Upload(((w - client.minimize(start=w)) / accumulated, accumulated))
