"""The global model as observers see it, and the base of observers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.directions import RUN_COLUMNS, Mode
from fedax.core.federation import Cohort
from fedax.core.hyper import check_declared
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Task
from fedax.core.validation.misuse import described, explained, name_of
from fedax.errors import InvalidInput
from fedax.utils.layout import accumulator

Split = Literal["train", "validation", "test", "central"]
OfClients = Literal["train", "validation", "test"]
"""Splits that clients own."""


class View(ABC):
    r"""The global model on all clients' data.

    Passes over the data are shared: asking twice costs once.

    The objective is $f(w) = \sum_k p_k f_k(w)$ with $p_k = n_k / n$, or with $p_k = 1/N$ if the
    schedule has `weights="equal"` or the method counts clients alike by itself
    (`Algorithm.equal_weights`).

    Attributes:
        w: the global model, flat.
        task: what is learned.
        equal: whether clients count alike in the objective.
        nodes: the clients' own models, for methods that keep them (`Algorithm.nodes`); None if all
            have the global one.
        weights: of the clients' uploads, for methods that remember their own (`Algorithm.weights`);
            None if those are the cohort's.
        method, solver, schedule: of the run.
        sizes: of the clients' training examples, in at least 32 bits: half precision cannot hold
            them.
        share: $p_k$, the clients' shares of the objective, of sum 1.
    """

    w: Float[Array, "dim"]
    task: Task
    equal: bool
    nodes: Float[Array, "clients dim"] | None
    weights: Float[Array, "clients"] | None
    method: Algorithm[Any]
    solver: Solver
    schedule: Schedule

    @property
    def sizes(self) -> Float[Array, "clients"]:
        return jnp.asarray(self.task.train.sizes).astype(accumulator(self.w.dtype))

    @property
    def share(self) -> Float[Array, "clients"]:
        sizes = self.sizes
        return jnp.full_like(sizes, 1 / len(sizes)) if self.equal else sizes / sizes.sum()

    @abstractmethod
    def cohort(self) -> Cohort:
        """Returns the clients that worked in the last phase of the last round.

        Those of the second draw, if a method draws twice; everyone, if everyone works. `ids` has
        shape (clients,), with padding from `count` on. Before round 0, and after a round that
        no client took part in, `count` is 0.
        """

    @abstractmethod
    def per_client(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        """Computes each client's mean of `"loss"` or of a score.

        NaN for a client without examples.
        """

    @abstractmethod
    def personal(self, split: OfClients, score: str) -> Float[Array, "clients"]:
        """Computes `per_client` for the models that the clients use themselves.

        See `Algorithm.personal`.
        """

    def measured(self, split: OfClients) -> Bool[Array, "clients"]:
        """Returns which clients have a value of `per_client` or `personal`.

        They have examples, and the engine knows their scores.

        A client without is left out of means over clients. A value that is not finite is not left
        out.
        """
        return jnp.asarray(getattr(self.task, split).sizes) > 0

    @abstractmethod
    def overall(self, split: Split, score: str) -> Float[Array, ""]:
        """Computes the mean over all examples of a split.

        Every example counts alike, so clients weigh n_k, also if the objective counts them alike.
        """

    def objective(self) -> Float[Array, ""]:
        r"""Computes $\sum_k p_k f_k(w)$, without l2."""
        return (
            self.share @ self.per_client("train", "loss")
            if self.equal
            else self.overall("train", "loss")
        )

    @abstractmethod
    def per_node(self, score: str) -> Float[Array, "clients"]:
        """Evaluates each client's own model on the central test set; one pass for each.

        The mean of `"loss"` or of a score.
        """

    @abstractmethod
    def each(self, look: Callable[..., Any], *rows: Float[Array, "clients ..."]) -> Any:
        """Evaluates a pure function at every client; first axis (clients,).

        `look(client, *row)` may use the client's `loss` and `gradient`. Local work is that of round
        0: its number of steps, its learning rate, and the same minibatches at every observation.
        """

    @abstractmethod
    def gradients(self) -> "Gradients":
        """Computes statistics of the clients' full gradients at w."""

    def predictions(self, split: Split) -> Shaped[Array, "examples ..."]:
        """Returns the task's predictions for all examples of a split, in their order.

        Raises:
            InvalidInput: on engines that do not gather them.
        """
        raise InvalidInput.because(
            "observe", "this engine does not gather the predictions of examples"
        )

    def unseen(self, score: str, steps: int | None) -> Float[Array, "others"]:
        """Computes a score on the test examples of each client that never takes part.

        NaN for a client without any.

        With `steps`, after that number of local steps of the run's solver on the client's own
        training examples, from the global model.

        Raises:
            InvalidInput: on engines that do not know these clients.
        """
        raise InvalidInput.because("observe", "this engine does not know the unseen clients")


class Gradients(eqx.Module):
    r"""Moments of the clients' full local gradients $\nabla f_k(w)$, with shares $p_k$.

    Attributes:
        mean: $\nabla f = \sum_k p_k \nabla f_k$, shape (dim,).
        mean_square: $\sum_k p_k \lVert \nabla f_k \rVert^2$.
        mean_uniform: $\frac1N \sum_k \nabla f_k$, shape (dim,).
        mean_square_uniform: $\frac1N \sum_k \lVert \nabla f_k \rVert^2$.
        mean_norm_uniform: $\frac1N \sum_k \lVert \nabla f_k \rVert$.
    """

    mean: Float[Array, "dim"]
    mean_square: Float[Array, ""]
    mean_uniform: Float[Array, "dim"]
    mean_square_uniform: Float[Array, ""]
    mean_norm_uniform: Float[Array, ""]

    @staticmethod
    def terms(gradient: Float[Array, "dim"], share: Float[Array, ""], clients: int) -> "Gradients":
        """Returns one client's terms of the moments, which are sums over all clients."""
        square = gradient @ gradient
        # divided by the number of clients here, so that moments are plain sums over clients
        return Gradients(
            share * gradient,
            share * square,
            gradient / clients,
            square / clients,
            jnp.sqrt(square) / clients,
        )

    @property
    def variance(self) -> Float[Array, ""]:
        r"""Computes $\frac1N \sum_k \lVert \nabla f_k - \nabla f \rVert^2$."""
        # the square written out; rounding may put it below 0
        return jnp.maximum(
            self.mean_square_uniform - 2 * self.mean_uniform @ self.mean + self.mean @ self.mean, 0
        )


class Observer(eqx.Module):
    """Pure function of a view that computes metrics. Observers never affect training.

    Fields that are declared by `fedax.hyper` are checked against their range.
    """

    lower_is_better: ClassVar[tuple[str, ...]] = ()
    """Names of metrics of which less is better, whatever the task's scores."""

    def __check_init__(self) -> None:
        check_declared(self)

    @abstractmethod
    def __call__(self, view: View) -> dict[str, Any]:
        """Returns metrics by name: numbers, or arrays of a fixed shape."""

    def check(self, task: Task) -> None:
        """Refuses a task without what the observer needs, such as a test set.

        Called before anything is compiled.
        """

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        """Returns the directions of its metrics: `"max"` where more is better, `"min"` where less.

        A metric without one cannot select a model, end a run or rank methods unless the caller says
        its direction.

        Args:
            scores: the directions of the task's scores.
        """
        return dict.fromkeys(self.lower_is_better, "min")

    def on_host(self, seen: Mapping[str, np.ndarray], task: Task) -> dict[str, Any]:
        """Computes further metrics, not compiled, from what the observers have seen; see `RAW`."""
        return {}


def compute_all(observers: Sequence[Observer], view: View) -> dict[str, Any]:
    """Computes the metrics of all observers on a view, inside a compiled program.

    Raises:
        InvalidInput: an observer that returns no metrics by name, or does what compiled functions
            cannot do; two metrics of one name.
    """
    metrics: list[Mapping[str, Any]] = []
    for observer in observers:
        with explained(observer.__call__, _IN_AN_OBSERVER):
            values = observer(view)
        metrics.append(_check_metrics(observer.__call__, values))
    return merge_metrics(metrics)


_IN_AN_OBSERVER = (
    'Return the array under a name that begins with "raw ", and make the metric of it in '
    "on_host(self, seen, task), which is not compiled."
)


def _check_metrics(function: Callable[..., Any], values: Any) -> Mapping[str, Any]:
    """Refuses what an observer returns if it is not a mapping of metrics by name."""
    if isinstance(values, Mapping) and all(isinstance(key, str) for key in values):
        return values
    field = f"{name_of(function)}, its result"
    allowed = "a dict of metrics by name"
    raise InvalidInput.found(field, described(values), allowed, 'Write return {"name": value}.')


RAW = "raw "
"""The beginning of names of what observers see for their work on the host alone; no metrics."""


def on_host(
    observers: Sequence[Observer], seen: Mapping[str, np.ndarray], task: Task
) -> dict[str, np.ndarray]:
    """Returns the metrics of one run: compiled ones, without raw ones, and those of the host.

    Raises:
        InvalidInput: two metrics of one name.
    """
    compiled = {name: value for name, value in seen.items() if not name.startswith(RAW)}
    made = [
        _check_metrics(observer.on_host, observer.on_host(seen, task)) for observer in observers
    ]
    return {name: np.asarray(value) for name, value in merge_metrics([compiled, *made]).items()}


def merge_metrics(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the metrics of several observers as one mapping.

    Raises:
        InvalidInput: two metrics of one name, of which one would replace the other, or one with the
            name of a column of runs.
    """
    merged: dict[str, Any] = {}
    for mapping in metrics:
        for name in mapping:
            # two observers of predictions may ask for the same raw array
            if name in RUN_COLUMNS or (name in merged and not name.startswith(RAW)):
                allowed = f"names that no other metric has, nor a column: {', '.join(RUN_COLUMNS)}"
                hint = "Rename it. The metrics of two equal observers need two runs."
                raise InvalidInput.of("run(observe=...)", name, allowed, hint)
        merged |= mapping
    return merged


def modes_of(observers: Iterable[Observer], task: Task) -> dict[str, Mode]:
    """Returns the directions of all metrics that have one."""
    modes: dict[str, Mode] = {}
    for observer in observers:
        modes |= observer.modes(task.score_modes)
    return modes
