"""Binary logistic regression, the convex problem of the local GD paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fedax.core import InvalidInput, Task
from fedax.data import FederatedData
from fedax.data.options import NonNegative, validated
from fedax.examples.integer_ranges import check_labels
from fedax.numerics.spectrum import mean_outer_norm

# Records rather than closures, so that tasks of equal width share compiled programs.


@dataclass(frozen=True)
class Zeros:
    """The starting point w = 0."""

    features: int

    def __call__(self, key: Key[Array, ""]) -> Float[Array, "features"]:
        return jnp.zeros(self.features)


@dataclass(frozen=True)
class OfMargin:
    """A function of the margin, for labels 0 and 1."""

    separate: ClassVar[bool] = True
    takes_state: ClassVar[bool] = False

    def check_labels(self, field: str, splits: Sequence[Mapping[str, Any]]) -> None:
        """Refuses other labels than 0 and 1, such as -1; called by `Task`.

        Raises:
            DataError: such a label.
        """
        check_labels(field, splits, 2)


@dataclass(frozen=True)
class LogisticLoss(OfMargin):
    r"""Logistic loss $\log(1 + e^{-(2y-1) \langle x, w \rangle})$ of each example.

    Labels y are 0 or 1; finite for any finite margin.
    """

    def __call__(
        self, params: Float[Array, "features"], examples: Any, key: Any
    ) -> Float[Array, "batch"]:
        return jax.nn.softplus(-_margin(params, examples))

    def smoothness(self, examples: Any) -> float:
        r"""Returns $\lambda_{\max}(X^\top X) / 4n$.

        The logistic function's slope is at most 1/4, which it reaches at 0.
        """
        return mean_outer_norm(np.asarray(examples["x"])) / 4


@dataclass(frozen=True)
class LogisticAccuracy(OfMargin):
    """1 for each example on the right side of the plane, 1/2 for one on it, else 0."""

    def __call__(
        self, params: Float[Array, "features"], examples: Any, key: Any
    ) -> Float[Array, "batch"]:
        return (1 + jnp.sign(_margin(params, examples))) / 2


@dataclass(frozen=True)
class LogisticProbabilities:
    r"""The probabilities of both classes for each example,
    $1 / (1 + e^{\pm \langle x, w \rangle})$.
    """

    takes_state: ClassVar[bool] = False

    def __call__(
        self, params: Float[Array, "features"], examples: Any, key: Any
    ) -> Float[Array, "batch 2"]:
        z = examples["x"].astype(params.dtype) @ params
        return jax.nn.sigmoid(jnp.stack([-z, z], axis=1))


def _margin(params: Float[Array, "features"], examples: Any) -> Float[Array, "batch"]:
    return (2 * examples["y"] - 1).astype(params.dtype) * (
        examples["x"].astype(params.dtype) @ params
    )


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
    return Task(
        start=Zeros(shape[0]),
        loss=LogisticLoss(),
        data=federated,
        scores={"accuracy": LogisticAccuracy()},
        l2=1 / int(federated.sizes.sum()) if l2 is None else l2,
        name=federated.name,
        predictor=LogisticProbabilities(),
        owner=None,
    )
