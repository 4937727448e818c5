"""MOON: contrastive local training against the global and the last local model."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    InvalidInput,
    Layout,
    LocalProblem,
    ModelAndStates,
    Scalar,
    Task,
    Upload,
    Vector,
    added_gradient,
    hyper,
)


class MOON(Algorithm[ModelAndStates]):
    r"""Local features are pulled to those of the global model, and away from those of the client's
    last local model.

    With the features $z$ of the model that is trained, $z_g$ of the global one and $z_p$ of the
    client's last one, the local loss of an example is

    $$ \ell + \mu \Big( -\log \frac{e^{\cos(z, z_g)/\tau}}{e^{\cos(z, z_g)/\tau} + e^{\cos(z,
    z_p)/\tau}} \Big). $$

    A client's last model is at first the starting point, with which the term has no gradient in
    round 0. Aggregation is FedAvg's.

    Args:
        mu: $\mu$, at least 0; 0 is FedAvg.
        temperature: $\tau$, above 0.
        features: $z$: a function `(params, examples, key) -> (batch, features)` of the model's
            parameters and the task's arrays, such as the output of all layers but the last, as the
            code has it. None for the task's predictions.

    Example:
        >>> import fedax
        >>> method = fedax.MOON(mu=1.0, temperature=0.5)

    Source: Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, Alg. 1, and the
    authors' code (github.com/QinbinLi/MOON, main.py, with one past model).
    """

    mu: Scalar = hyper(1.0, low=0.0, doc="weight of the contrastive loss")
    temperature: Scalar = hyper(
        0.5, low=0.0, open_low=True, doc="temperature of the contrastive loss"
    )
    features: Callable[..., Any] | None = eqx.field(static=True, default=None)

    citation = Citation(
        paper="Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021",
        read=("paper", "authors' code"),
        equation="Alg. 1",
    )

    def check_model(self, task: Task, layout: Layout) -> None:
        if self.features is None and task.predictor is None:
            raise InvalidInput.of(
                "MOON(features=...)", None, "a function, for a task without predictions"
            )
        task.require_no_state("MOON")

    def init(self, fed: Federation, w: Vector) -> ModelAndStates:
        return ModelAndStates(w, fed.client_states(w))

    def round(self, fed: Federation, state: ModelAndStates) -> ModelAndStates:
        return ModelAndStates(*fed.average(self.train, fed.sample(), state.w, states=state.clients))

    def train(self, client: Client, w: Vector, last: Vector) -> Upload[Vector]:
        gradient = added_gradient(self.contrast(client, w, last), self.mu)
        x = client.minimize(LocalProblem(step_gradient=gradient), start=w)
        return Upload(x, state=x)

    def contrast(self, client: Client, w: Vector, last: Vector) -> Callable[..., Any]:
        """Returns the contrastive loss of an example."""
        features = self.features or client.task.predictor
        global_params, last_params = (
            client.task.assembled(client.layout.unravel(model)) for model in (w, last)
        )

        def loss(params: PyTree, examples: Any, key: Any) -> Float[Array, "batch"]:
            assert features is not None, "check_model refuses such tasks"
            z, z_g, z_p = (
                normalize_rows(features(model, examples, key))
                for model in (params, global_params, last_params)
            )
            # -log(e^a / (e^a + e^b)) is softplus(b - a), which does not overflow
            return jax.nn.softplus(((z * z_p).sum(1) - (z * z_g).sum(1)) / self.temperature)

        return loss


def normalize_rows(rows: Float[Array, "batch features"]) -> Float[Array, "batch features"]:
    """Returns the rows at length 1; rows near zero stay near zero."""
    return rows / jnp.sqrt(jnp.maximum((rows**2).sum(1, keepdims=True), 1e-16))
