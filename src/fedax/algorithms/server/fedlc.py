"""FedLC: cross entropy whose logits are calibrated by a client's numbers of examples by class."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.algorithms.server.on_classes import Gradient, OnClasses, logits_from
from fedax.core import Card, Client, Minibatch, Scalar, Vector, hyper


class FedLC(OnClasses):
    r"""FedAvg on a cross entropy that asks for larger margins where a client has few examples of a
    class.

    With the client's numbers of examples $n_c$ of each class and the logits z, the local loss of an
    example of class y is

    $$ -\log \frac{\exp(z_y - \tau\, n_y^{-1/4})}{\sum_c \exp(z_c - \tau\, n_c^{-1/4})} . $$

    Classes of which the client has no example are left out of the sum: their logits get no gradient
    from this client. Needs integer labels `y` and class probabilities as predictions.

    Args:
        tau: $\tau$, at least 0; 0 is FedAvg where every client has all classes.

    Example:
        >>> import fedax
        >>> method = fedax.FedLC(tau=1.0)

    Source: Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration,
    ICML 2022, as in github.com/KarhouTam/FL-bench (src/client/fedlc.py), which is not the authors'
    code; of the paper the abstract was read.
    """

    tau: Scalar = hyper(1.0, low=0.0, doc="strength of the calibration")

    card: ClassVar[Card] = Card(
        paper="Zhang et al., Federated Learning with Label Distribution Skew via Logits "
        "Calibration, ICML 2022",
        equation="from a public implementation; paper not read",
    )

    def gradient(self, client: Client, w: Vector) -> Gradient:
        counts = jnp.asarray(client.size, w.dtype) * class_frequencies(client, w)
        calibration = jnp.exp(-self.tau * jnp.maximum(counts, 0.5) ** -0.25)
        return weighted_softmax_gradient(client, jnp.where(counts < 0.5, 0, calibration))


def class_frequencies(client: Client, w: Vector) -> Float[Array, "classes"]:
    """Computes the share of each class among the client's training examples."""
    predict: Any = client.task.predictor

    def classes(params: PyTree, examples: Any, key: Any) -> Float[Array, "batch classes"]:
        probabilities = predict(params, examples, key)
        return jax.nn.one_hot(examples["y"], probabilities.shape[1], dtype=probabilities.dtype)

    return client.mean_of(classes, w)


def weighted_softmax_gradient(client: Client, factors: Float[Array, "classes"]) -> Gradient:
    """Returns `(minibatch, params) -> gradient` of the cross entropy with the classes' exponentials
    multiplied by factors, and the task's l2.
    """
    task, predict = client.task, client.task.predictor
    assert predict is not None, "tasks without classes are refused"

    present = factors > 0
    shift = jnp.log(jnp.where(present, factors, 1))[None]

    def loss(params: PyTree, examples: Any, key: Any) -> Float[Array, "batch"]:
        z = logits_from(predict(params, examples, key)) + shift
        logs = jax.nn.log_softmax(z, axis=1, where=present[None])
        return -jnp.take_along_axis(logs, examples["y"][:, None], axis=1)[:, 0]

    def gradient(batch: Minibatch, params: PyTree) -> PyTree:
        return jax.tree.map(
            lambda g, leaf: g + task.l2 * leaf, batch.gradient_of(loss, params), params
        )

    return gradient
