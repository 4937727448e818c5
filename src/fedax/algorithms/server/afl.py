"""AFL: the worst mixture of the clients counts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedax.core import Algorithm, Citation, Client, Federation, Scalar, Upload, Vector, hyper


class AgnosticState(eqx.Module):
    """The global model, the mixture of the clients, and the mean of all models so far."""

    w: Vector
    mixture: Float[Array, "clients"]
    mean: Vector


class AFL(Algorithm[AgnosticState]):
    r"""Agnostic federated learning: $\min_w \max_{\lambda \in \Delta} \sum_k \lambda_k f_k(w)$,
    with local work.

    $$ w \leftarrow \sum_k \lambda_k w_k, \qquad \lambda \leftarrow \Pi_\Delta\big(\lambda + \gamma
    (f_1(w), \dots, f_N(w))\big), $$

    both from the same received w. Everybody takes part; the mixture starts at the clients' weights.
    With $\gamma = 0$ this is FedAvg with everyone. The paper returns $\frac1T \sum_{t=1}^T w_t$, of
    which its convergence theorem speaks; the last model is usual in practice.

    Args:
        mixture_lr: $\gamma$, at least 0.
        returned: "last", the model after the last round, or "mean", that of all rounds.

    Example:
        >>> import fedax
        >>> method = fedax.AFL(mixture_lr=0.1)

    Source: Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, Fig. 1, as in
    github.com/litian96/fair_flearn (flearn/trainers/afl.py), which is not the authors' code and has
    one gradient in place of local work.
    """

    mixture_lr: Scalar = hyper(0.1, low=0.0, doc="step size of the mixture")

    returned: str = hyper(
        "last", choices=("last", "mean"), doc="the last model, or the mean of those of all rounds"
    )

    citation = Citation(
        paper="Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019",
        read=("others' code",),
        equation="Fig. 1",
    )

    def init(self, fed: Federation, w: Vector) -> AgnosticState:
        weights = fed.everyone.weights
        return AgnosticState(w, weights / weights.sum(), w)

    def round(self, fed: Federation, state: AgnosticState) -> AgnosticState:
        uploads = fed.gather(self.train, fed.everyone, state.w)
        models, losses = uploads.value
        w = uploads.shares(state.mixture) @ models
        moved = state.mixture + self.mixture_lr * losses
        with jax.numpy_dtype_promotion("standard"):
            mixture = optax.projections.projection_simplex(moved)
        rounds = jnp.asarray(fed.round, w.dtype)  # the starting point is not among them
        return AgnosticState(w, mixture, state.mean + (w - state.mean) / (rounds + 1))

    def model(self, state: AgnosticState) -> Vector:
        return state.mean if self.returned == "mean" else state.w

    def train(self, client: Client, w: Vector) -> Upload[tuple[Vector, Float[Array, ""]]]:
        return Upload((client.minimize(start=w), client.loss(w)))
