"""Federated averaging of another local loss on classes: what such methods share."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.core import (
    Algorithm,
    Client,
    Federation,
    InvalidInput,
    Layout,
    LocalProblem,
    Minibatch,
    Task,
    Upload,
    Vector,
)

Gradient: TypeAlias = Callable[[Minibatch, PyTree], PyTree]
"""`(minibatch, params) -> gradient`."""


class OnClasses(Algorithm[Vector]):
    """FedAvg whose clients train on another loss of classes than the task's."""

    def check_model(self, task: Task, layout: Layout) -> None:
        name = type(self).__name__
        if not has_classes(task):
            allowed = "a classification: predictions, and whole numbers `y` as labels"
            raise InvalidInput.found(name, "a task without classes", allowed)
        task.require_no_state(name)

    def round(self, fed: Federation, state: Vector) -> Vector:
        return fed.average(self.train, fed.sample(), state)

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        problem = LocalProblem(step_gradient=self.gradient(client, w))
        return Upload(client.minimize(problem, start=w))

    @abstractmethod
    def gradient(self, client: Client, w: Vector) -> Gradient:
        """Returns the gradient of a client's local loss, given the global model."""


def has_classes(task: Task) -> bool:
    """Whether the task has integer labels `y` and predictions of shape (batch, classes)."""
    labels = task.train.arrays.get("y")
    predictions = task.predictions
    if predictions is None or labels is None:
        return False
    params = jax.eval_shape(task.start, jax.random.key(0))
    shape = jax.eval_shape(predictions, params, task.train.arrays, None).shape
    is_integer = labels.ndim == 1 and jnp.issubdtype(labels.dtype, jnp.integer)
    # one column is a regression on whole numbers
    return is_integer and len(shape) == 2 and shape[1] > 1


def logits_from(probabilities: Float[Array, "batch classes"]) -> Float[Array, "batch classes"]:
    """Returns logits of probabilities, up to a constant of each example, which does not matter."""
    # the smallest numbers have reciprocals that overflow when gradients multiply them
    floor = jnp.finfo(probabilities.dtype).tiny ** 0.8
    return jnp.log(jnp.maximum(probabilities, jnp.asarray(floor, probabilities.dtype)))
