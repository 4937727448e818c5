"""FedDANE: a federated Newton-type method."""

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithms.server.dane import gradient
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    InvalidInput,
    LocalProblem,
    PerClient,
    Reduction,
    Scalar,
    Solved,
    Upload,
    Vector,
    hyper,
)


class DaneState(eqx.Module):
    """The global model and the latest estimate of its gradient."""

    w: Vector
    g: Vector


class FedDANE(Algorithm[DaneState]):
    r"""Each device corrects its loss by the difference between a sampled global gradient and its
    own.

    $$ g_t = \frac{\sum_{k \in S_t} n_k \nabla F_k(w)}{\sum_{k \in S_t} n_k}, \qquad
       w_k \approx \arg\min_v\; F_k(v) + \rho^t \langle g_t - \nabla F_k(w), v \rangle +
       \frac{\mu}{2} \lVert v - w \rVert^2, \qquad w \leftarrow \frac{\sum_{k \in S'_t} n_k
       w_k}{\sum_{k \in S'_t} n_k}. $$

    One update takes two rounds of communication. With everyone in both cohorts this is (inexact)
    DANE.

    Args:
        mu: $\mu$, one number or one per device; at least 0.
        correction: `"exact"`, the equation above; `"off"`, no linear term; `"as_released"`, what
            the published code computes for models of two parameter arrays: in place of $\nabla F_k$
            it subtracts the first entry of the second array's gradient from the whole first array,
            and its second entry from the whole second array. A diagnostic, not a method.
        cohorts: `"independent"` draws $S'_t$ anew (Alg. 2), `"shared"` uses $S_t$ again (as the
            published code does).
        decay: $\rho$, the decayed variant of Sec. V-C; in [0, 1], 1 keeps the correction.
        pipelined: the variant of Sec. V-C with one communication a round: devices send model and
            gradient together, and use the previous round's $g$; in round 0 there is no correction.

    Example:
        >>> import fedax
        >>> method = fedax.FedDANE(mu=0.01, cohorts="shared")

    Source: Li et al., FedDANE: A Federated Newton-Type Method, Asilomar 2019, Alg. 2.
    """

    mu: PerClient = hyper(0.1, low=0.0, per_client=True, doc="weight of the proximal term")
    correction: str = hyper("exact", choices=("exact", "off", "as_released"), doc="the linear term")
    cohorts: str = hyper(
        "independent",
        choices=("independent", "shared"),
        doc="whether devices are drawn anew to train",
    )
    decay: Scalar = hyper(1.0, low=0.0, high=1.0, doc="factor on the correction per round")
    pipelined: bool = hyper(
        False, doc="use the previous round's gradient, one communication a round"
    )

    citation = Citation(
        paper="Li et al., FedDANE: A Federated Newton-Type Method, Asilomar 2019 "
        "(arXiv:2001.01920)",
        read=("paper", "authors' code"),
        equation="Alg. 2",
        reductions=(
            Reduction(
                {"correction": "off", "cohorts": "shared", "mu": 0.3}, "fedprox", {"mu": 0.3}
            ),
            Reduction({"correction": "off", "cohorts": "shared", "mu": 0.0}, "fedavg"),
        ),
    )

    def init(self, fed: Federation, w: Vector) -> DaneState:
        return DaneState(w, jnp.zeros_like(w))

    def round(self, fed: Federation, state: DaneState) -> DaneState:
        cohort = fed.sample()
        w = state.w
        if self.pipelined:
            return DaneState(*fed.average(self.solve_and_gradient, cohort, w, state.g))
        g = fed.average(gradient, cohort, w)
        return DaneState(
            fed.average(self.solve, cohort if self.cohorts == "shared" else fed.sample(), w, g), g
        )

    def solve(self, client: Client, w: Vector, g: Vector) -> Upload[Vector]:
        return Upload(self._minimize(client, w, g, client.gradient(w)))

    def solve_and_gradient(
        self, client: Client, w: Vector, g: Vector
    ) -> Upload[tuple[Vector, Vector]]:
        local_gradient = client.gradient(w)
        return Upload((self._minimize(client, w, g, local_gradient), local_gradient))

    def solved(self, client: Client, w: Vector, gradient: Vector) -> Solved:
        local_gradient = client.gradient(w)
        return Solved(
            LocalProblem(w, gradient - local_gradient, client.mine(self.mu)),
            self._minimize(client, w, gradient, local_gradient),
        )

    def _minimize(self, client: Client, w: Vector, g: Vector, local_gradient: Vector) -> Vector:
        if self.correction == "as_released":
            local_gradient = _unpack_as_released(local_gradient, client.layout.blocks)
        strength = self.decay ** jnp.asarray(client.round, w.dtype)
        if self.pipelined:  # in round 0 there is no gradient yet
            strength = jnp.where(client.round == 0, 0, strength)
        linear = None if self.correction == "off" else strength * (g - local_gradient)
        return client.minimize(
            LocalProblem(anchor=w, linear=linear, prox=client.mine(self.mu)), start=w
        )


def _unpack_as_released(gradient: Vector, blocks: tuple[int, ...]) -> Vector:
    """The released code unpacks the pair (dW, db) as (_, db) and zips db with the two variables."""
    if len(blocks) != 2 or blocks[1] < 2:
        allowed = "models of two parameter arrays, the second of two entries or more"
        raise InvalidInput.of("FedDANE(correction=...)", "as_released", allowed)
    return jnp.concatenate(
        [jnp.full(size, gradient[blocks[0] + i]) for i, size in enumerate(blocks)]
    )
