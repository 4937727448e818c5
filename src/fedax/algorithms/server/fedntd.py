"""FedNTD: local training that keeps the global model's view of the classes that are not true."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedax.algorithms.server.on_classes import Gradient, OnClasses, logits_from
from fedax.core import Citation, Client, Scalar, Vector, added_gradient, hyper


class FedNTD(OnClasses):
    r"""Clients distil the global model's predictions of all classes but the true one, which they
    would forget.

    With $\tilde q$ the softmax of $z_c / \tau$ over the classes $c \neq y$, of the model that is
    trained and of the global one, the local loss of an example is

    $$ \ell + \beta \tau^2 \sum_{c \neq y} \tilde q^{\,g}_c \log \frac{\tilde
    q^{\,g}_c}{\tilde q_c} . $$

    Aggregation is FedAvg's. The term has no gradient at the global model, so that one full step of
    gradient descent is FedAvg's. Needs integer labels `y` and class probabilities as predictions.

    Args:
        beta: $\beta$, at least 0; 0 is FedAvg.
        tau: $\tau$, above 0.

    Example:
        >>> import fedax
        >>> method = fedax.FedNTD(beta=1.0, tau=1.0)

    Source: Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated
    Learning, NeurIPS 2022, as in the authors' code (github.com/Lee-Gihun/FedNTD,
    algorithms/fedntd/criterion.py).
    """

    beta: Scalar = hyper(1.0, low=0.0, doc="weight of the distillation")
    tau: Scalar = hyper(1.0, low=0.0, open_low=True, doc="temperature of the distillation")

    citation = Citation(
        paper="Lee et al., Preservation of the Global Knowledge by Not-True Distillation in "
        "Federated Learning, NeurIPS 2022",
        read=("authors' code",),
    )

    def gradient(self, client: Client, w: Vector) -> Gradient:
        return added_gradient(self.distillation(client, w), self.beta * self.tau**2)

    def distillation(self, client: Client, w: Vector) -> Callable[..., Any]:
        """Returns the divergence of an example's not-true predictions from the global model's."""
        task = client.task
        predict = task.predictor
        assert predict is not None, "check_model refuses such tasks"
        global_params = task.assembled(client.layout.unravel(w))

        def loss(params: PyTree, examples: Any, key: Any) -> Float[Array, "batch"]:
            z, z_g = (
                self.log_not_true(predict(model, examples, key), examples["y"])
                for model in (params, global_params)
            )
            # the true class is minus infinity in both, and has no share
            gap = jnp.where(jnp.isfinite(z_g), z_g - z, 0)
            return (jnp.exp(z_g) * gap).sum(1)

        return loss

    def log_not_true(
        self, probabilities: Float[Array, "batch classes"], labels: Array
    ) -> Float[Array, "batch classes"]:
        """Returns the logarithms of the softmax over the classes other than the true one."""
        others: Bool[Array, "batch classes"] = ~jax.nn.one_hot(
            labels, probabilities.shape[1], dtype=bool
        )
        return jax.nn.log_softmax(logits_from(probabilities) / self.tau, axis=1, where=others)
