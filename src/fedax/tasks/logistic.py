"""Binary logistic regression, the convex problem of the local GD paper."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import InvalidInput, Task
from fedax.data import FederatedData
from fedax.data.options import NonNegative, validated
from fedax.tasks.from_model import Halfspaces, from_model


def margin_loss(z: Float[Array, "batch"], examples: Any) -> Float[Array, "batch"]:
    r"""Returns $\log(1 + e^{-(2y-1) z})$ of each example; finite for any finite z."""
    return jax.nn.softplus(-_margin(z, examples))


def margin_accuracy(z: Float[Array, "batch"], examples: Any) -> Float[Array, "batch"]:
    """Returns 1 for each example on the right side of the plane, 1/2 for one on it, else 0."""
    return (1 + jnp.sign(_margin(z, examples))) / 2


def both_probabilities(z: Float[Array, "batch"], examples: Any) -> Float[Array, "batch 2"]:
    r"""Returns the probabilities of both classes for each example, $1 / (1 + e^{\pm z})$."""
    return jax.nn.sigmoid(jnp.stack([-z, z], axis=1))


def _margin(z: Float[Array, "batch"], examples: Any) -> Float[Array, "batch"]:
    return (2 * examples["y"] - 1).astype(z.dtype) * z


@validated
def logistic(federated: FederatedData, *, l2: NonNegative | None = None) -> Task:
    r"""Makes a task of binary logistic regression without intercept, from w = 0.

    $$ f_k(w) = \frac{1}{n_k} \sum_{i \in k} \log(1 + e^{-(2 y_i - 1) \langle x_i, w \rangle})
       + \frac{\text{l2}}{2} \lVert w \rVert^2. $$

    Args:
        federated: data with two classes and one row of numbers per example.
        l2: at least 0; 1/n with n training examples in all by default.

    Raises:
        InvalidInput: data with other than two classes or other than one axis of features, or a bad
            l2.

    >>> federated = FederatedData.from_arrays(
    ...     [{"x": [[0.0], [1.0]], "y": [0, 1]}, {"x": [[2.0]], "y": [1]}], classes=2
    ... )
    >>> logistic(federated).l2 == 1 / 3
    True

    Source: Khaled, Mishchenko and Richtarik, First Analysis of Local GD on Heterogeneous Data
    (arXiv:1909.04715), Sec. 4.
    """
    if federated.classes != 2:
        raise InvalidInput.of(
            "logistic(federated=...)", f"{federated.classes} classes", "data with 2 classes"
        )
    shape = federated.train[0]["x"].shape[1:]
    if len(shape) != 1:
        raise InvalidInput.of(
            "logistic(federated=...)",
            f"examples of shape {shape}",
            "one row of features per example",
        )
    return from_model(
        Halfspaces(shape[0]),
        margin_loss,
        federated,
        scores={"accuracy": margin_accuracy},
        l2=1 / int(federated.sizes.sum()) if l2 is None else l2,
        predict=both_probabilities,
    )
