"""FedLC: cross entropy whose logits are calibrated by a client's numbers of examples by class."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.core import (
    Algorithm,
    Card,
    Client,
    Federation,
    InvalidInput,
    Layout,
    LocalProblem,
    Minibatch,
    Scalar,
    Task,
    Upload,
    Vector,
    hyper,
)


class FedLC(Algorithm[Vector]):
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

    def check_model(self, task: Task, layout: Layout) -> None:
        check_classes("FedLC", task)

    def init(self, fed: Federation, w: Vector) -> Vector:
        return w

    def round(self, fed: Federation, state: Vector) -> Vector:
        return fed.average(self.train, fed.sample(), state)

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        counts = jnp.asarray(client.size, w.dtype) * class_frequencies(client, w)
        calibration = jnp.exp(-self.tau * jnp.maximum(counts, 0.5) ** -0.25)
        gradient = weighted_softmax_gradient(client, jnp.where(counts < 0.5, 0, calibration))
        return Upload(client.minimize(LocalProblem(step_gradient=gradient), start=w), reference=w)


def has_classes(task: Task) -> bool:
    """Whether the task has integer labels `y` and predictions."""
    labels = task.train.arrays.get("y")
    return (
        task.predictor is not None
        and labels is not None
        and labels.ndim == 1
        and jnp.issubdtype(labels.dtype, jnp.integer)
    )


def check_classes(method: str, task: Task) -> None:
    """Refuses a task without classes, or with a model state.

    Raises:
        InvalidInput: names what the task lacks.
    """
    if not has_classes(task):
        allowed = "a classification: predictions, and whole numbers `y` as labels"
        raise InvalidInput.found(method, "a task without classes", allowed)
    if task.state is not None:
        raise InvalidInput.found(method, "a model with a state", "models without batch statistics")


def class_frequencies(client: Client, w: Vector) -> Float[Array, "classes"]:
    """Computes the share of each class among the client's training examples."""
    predict: Any = client.task.predictor

    def classes(params: PyTree, examples: Any, key: Any) -> Float[Array, "batch classes"]:
        probabilities = predict(params, examples, key)
        return jax.nn.one_hot(examples["y"], probabilities.shape[1], dtype=probabilities.dtype)

    return client.mean_of(classes, w)


def weighted_softmax_gradient(
    client: Client, factors: Float[Array, "classes"]
) -> Callable[[Minibatch, PyTree], PyTree]:
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


def logits_from(probabilities: Float[Array, "batch classes"]) -> Float[Array, "batch classes"]:
    """Returns logits of probabilities, up to a constant of each example, which does not matter."""
    # the smallest numbers have reciprocals that overflow when gradients multiply them
    floor = jnp.finfo(probabilities.dtype).tiny ** 0.8
    return jnp.log(jnp.maximum(probabilities, jnp.asarray(floor, probabilities.dtype)))
