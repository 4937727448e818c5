"""FedExP: extrapolated server steps."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class FedExP(Algorithm[Vector]):
    r"""Averaging with a server step that is the longer, the more the clients' changes disagree.

    $$ \Delta_i = w - w_i, \qquad \bar\Delta = \frac1M \sum_{i \in S} \Delta_i, \qquad
       \eta = \max\Big(1,\; \frac{\sum_{i \in S} \lVert \Delta_i \rVert^2}{2 M (\lVert \bar\Delta
       \rVert^2 + \varepsilon)}\Big), \qquad w \leftarrow w - \eta \bar\Delta, $$

    M clients in the cohort S, as in the extrapolated parallel projection method. Here both means
    have the cohort's weights; with a schedule of `weights="equal"` they are those of the formula.
    The authors' code has $M \varepsilon$ in place of $\varepsilon$, and reports the mean of the
    last two models.

    Notes: `server_step`, $\eta$.

    Args:
        eps: $\varepsilon$, above 0; keeps the step short near a stationary point. With a large one
            this is FedAvg.

    Example:
        >>> import fedax
        >>> method, schedule = fedax.FedExP(eps=1e-3), fedax.Schedule(cohort=10, weights="equal")

    Source: Jhunjhunwala, Wang and Joshi, FedExP: Speeding Up Federated Averaging via Extrapolation,
    ICLR 2023, Alg. 1, as in the authors' code (github.com/Divyansh03/FedExP, main.py).
    """

    eps: Scalar = hyper(1e-3, low=0.0, open_low=True, doc="term that keeps the server step short")

    citation = Citation(
        paper="Jhunjhunwala, Wang and Joshi, FedExP: Speeding Up Federated Averaging via "
        "Extrapolation, ICLR 2023",
        read=("authors' code",),
        equation="Alg. 1",
        reductions=(Reduction({"eps": 1e30}, "fedavg"),),
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        change, square = fed.average(self.train, fed.sample(), state)
        step = jnp.maximum(1, square / (2 * (change @ change + self.eps)))
        fed.log(server_step=step)
        return state - step * change

    def train(self, client: Client, w: Vector) -> Upload[tuple[Vector, Float[Array, ""]]]:
        change = w - client.minimize(start=w)
        return Upload((change, change @ change))
