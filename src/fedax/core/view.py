"""What an observer sees of the global model."""

from abc import ABC, abstractmethod
from typing import Any, Literal

import equinox as eqx
from jaxtyping import Array, Float

from fedax.core.federation import Cohort
from fedax.core.task import Task

Split = Literal["train", "test", "holdout"]


class View(ABC):
    """The global model on everybody's data. Passes over the data are shared: asking twice costs once.

    Attributes:
        w: the global model, flat.
        task: what is learned.
        nodes: the clients' own models, for methods that keep them (`Algorithm.nodes`); None if all have the global one.
        weights: of the clients' uploads, for methods that remember their own (`Algorithm.weights`); None if those are the
            cohort's.
    """

    w: Float[Array, "dim"]
    task: Task
    nodes: Float[Array, "clients dim"] | None
    weights: Float[Array, "clients"] | None

    @abstractmethod
    def cohort(self) -> Cohort:
        """The clients of the last round's first draw; before round 0, those of the first."""

    @abstractmethod
    def per_client(self, split: Literal["train", "test"], score: str) -> Float[Array, "clients"]:
        """The mean of `"loss"` or of a score of the task over each client's examples; NaN for a client without any."""

    @abstractmethod
    def personal(self, split: Literal["train", "test"], score: str) -> Float[Array, "clients"]:
        """As `per_client`, for the models that the clients use themselves (see `Algorithm.personal`)."""

    @abstractmethod
    def overall(self, split: Split, score: str) -> Float[Array, ""]:
        """The mean over all examples of a split; every example counts alike, so clients weigh n_k."""

    @abstractmethod
    def per_node(self, score: str) -> Float[Array, "clients"]:
        """The mean over the global test set of `"loss"` or of a score, for each client's own model; a pass for each."""

    @abstractmethod
    def gradients(self) -> "Gradients":
        """Statistics of the clients' full gradients at w."""


class Gradients(eqx.Module):
    r"""Moments of the clients' full local gradients $\nabla f_k(w)$, with shares $p_k = n_k/n$.

    Attributes:
        mean: $\sum_k p_k \nabla f_k$, shape (dim,).
        mean_square: $\sum_k p_k \lVert \nabla f_k \rVert^2$.
        mean_uniform: $\frac1N \sum_k \nabla f_k$, shape (dim,).
        mean_square_uniform: $\frac1N \sum_k \lVert \nabla f_k \rVert^2$.
        variance: $\frac1N \sum_k \lVert \nabla f_k - \nabla f \rVert^2$ with $\nabla f$ = `mean`.
    """

    mean: Float[Array, "dim"]
    mean_square: Float[Array, ""]
    mean_uniform: Float[Array, "dim"]
    mean_square_uniform: Float[Array, ""]
    variance: Float[Array, ""]


class Observer(eqx.Module):
    """A pure function of a view; whether it watches or not, the trajectory is the same."""

    @abstractmethod
    def __call__(self, view: View) -> dict[str, Any]:
        """Metrics by name: numbers, or arrays of a fixed shape."""

    def check(self, task: Task) -> None:
        """Refuses a task without what the observer needs (such as a test set), before anything is compiled."""
