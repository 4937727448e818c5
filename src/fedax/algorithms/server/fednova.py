"""FedNova: normalised averaging under unequal work."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.algorithms.server.released import sample_as_released
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    LocalProblem,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class FedNova(Algorithm[Vector]):
    r"""Clients that take more steps do not count more.

    $$ d_k = \frac{w - w_k}{\lVert a_k \rVert_1}, \qquad
       \tau_{\text{eff}} = \frac{\sum_S p_k \lVert a_k \rVert_1}{\sum_S p_k}, \qquad
       w \leftarrow w - \tau_{\text{eff}} \frac{\sum_S p_k d_k}{\sum_S p_k}, $$

    where $\lVert a_k \rVert_1$ is the sum of the weights of the client's gradients in its change:
    the number of steps $\tau_k$ for SGD, $\sum_{j \le \tau_k} \frac{1 - \theta^j}{1 - \theta}$ with
    momentum $\theta$, and $\frac{1 - (1 - \eta \mu)^{\tau_k}}{\eta \mu}$ with a proximal term of
    weight $\mu$. (In the proximal form the released code has the steps in $\tau_{\text{eff}}$. The
    paper offers that as a choice.) With equal work this is FedAvg, or FedProx. Needs SGD.

    Args:
        mu: $\mu$, at least 0.
        form: "as_written", or "as_released" with FedAWARE, whose server normalises the weights
            $p_k / \tau_k$ of the changes anew,
            $$ w \leftarrow w - \frac{\sum_S (p_k / \tau_k) (w - w_k)}{\sum_S p_k / \tau_k}, $$
            so that $\tau_{\text{eff}}$ is the harmonic mean of the numbers of steps: another
            method, with shorter steps.
        ids: whose weight a client's change has, "aligned" or "mixed" as in that code; see `FedAvg`.

    Example:
        >>> import fedax
        >>> method = fedax.FedNova()

    Source: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization, NeurIPS 2020, eq. (4) with $w_i = p_i$, Sec. 5, and the authors' code
    (github.com/JYWa/FedNova).
    """

    mu: Scalar = hyper(0.0, low=0.0, doc="weight of the proximal term")
    form: str = hyper(
        "as_written",
        choices=("as_written", "as_released"),
        doc="whether the server takes the mean of the steps",
    )
    ids: str = hyper(
        "aligned",
        choices=("aligned", "mixed"),
        later=True,
        doc="whose weight a client's change has",
    )

    citation = Citation(
        paper="Wang et al., Tackling the Objective Inconsistency Problem, NeurIPS 2020",
        read=("paper", "authors' code"),
        equation="eq. (4), Sec. 5",
        reductions=(
            Reduction({}, "fedavg", equal_sizes=True),
            Reduction({"mu": 0.3}, "fedprox", {"mu": 0.3}, equal_sizes=True),
            Reduction({"form": "as_released"}, "fedavg", equal_sizes=True),
        ),
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        cohort = fed.sample() if self.ids == "aligned" else sample_as_released(fed)
        direction, work = fed.average(self.train, cohort, state)
        return state - (work * direction if self.form == "as_written" else direction / work)

    def train(self, client: Client, w: Vector) -> Upload[tuple[Vector, Float[Array, ""]]]:
        change = w - client.minimize(LocalProblem(anchor=w, prox=self.mu), start=w)
        if self.form == "as_released":
            inverse_steps = 1 / jnp.asarray(client.steps, w.dtype)
            return Upload((inverse_steps * change, inverse_steps), is_change=True)
        accumulated = client.solver.accumulated(client, self.mu)
        return Upload((change / accumulated, accumulated), is_change=True)
