r"""The smoothness of a task's clients: closed forms, exact values of quadratics, and estimates
along a trial path.

- Losses that state it, which are logistic regression, $\lambda_{\max}(X^\top X) / 4n$, and softmax
  regression, $\lambda_{\max}(X^\top X) / 2n$: an upper bound for all parameters.
- Quadratics: the largest eigenvalue of the constant Hessian. A loss is one if its gradient is an
  affine function of the parameters.
- All others: `SAFETY` times the largest curvature along the path of `trial_smoothness`. This is an
  estimate, which the true constant may exceed.

The task's l2 is part of all of them.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # imports what is asked for, and only then
from jaxtyping import Float

from fedax.core import InvalidInput, Schedule, Task
from fedax.core.task import initial_params
from fedax.theory import local_gd
from fedax.theory.estimate import Losses, smoothness

SAFETY = 4.0
"""Factor on the largest curvature that was seen, where smoothness is an estimate."""
STEPS = 8
"""Steps of a trial path."""
_ROUNDING = 1e-5  # relative: eigenvalues of iterations lie below the true ones
_COARSE = 1e-2  # relative accuracy of eigenvalues that `SAFETY` multiplies


class Measured:
    """The smoothness of a task's clients; the same task and seeds give the same numbers to the last
    bit.

    Args:
        task: what is learned, with all clients' examples.
        weights: the clients' weights in `losses`, see `estimate.Losses`.
        seeds: of the runs, at least one. An estimate looks at the initial parameters of each.
    """

    def __init__(self, task: Task, weights: str = "shares", seeds: Sequence[int] = (0,)) -> None:
        self.task = task
        self._weights = weights
        self._starts = [initial_params(task, seed)[0] for seed in seeds]

    @functools.cached_property
    def losses(self) -> Losses:
        """The losses of all clients, from the first start."""
        return Losses(self.task, weights=self._weights, start=self._starts[0])

    @property
    def smoothness(self) -> Float[np.ndarray, "clients"]:
        """L_k, the smoothness of each client's loss, or an estimate of it; above 0."""
        return self._smoothness_and_source[0]

    @property
    def source(self) -> str:
        """The origin of the smoothness: `CLOSED_FORM`, `EXACT` or `ESTIMATE`."""
        return self._smoothness_and_source[1]

    @functools.cached_property
    def _smoothness_and_source(self) -> tuple[Float[np.ndarray, "clients"], str]:
        # from the strongest statement to the weakest: a bound, an exact value, an estimate
        values = closed_form(self.task)
        source = CLOSED_FORM
        if values is None and is_quadratic(self.task):
            clients = range(self.losses.clients)
            exact = [smoothness(self.losses, client=k, tolerance=1e-4) for k in clients]
            values = np.array(exact) * (1 + _ROUNDING)
            source = EXACT
        if values is None:
            # all starts of the runs: curvature may differ between them
            points = [self.losses.layout.ravel(start) for start in self._starts]
            with np.errstate(over="ignore", invalid="ignore"):  # of trial steps far out
                paths = [trial_smoothness(self.losses, np.asarray(w, float)) for w in points]
            values = SAFETY * np.max(paths, axis=0)
            source = ESTIMATE
        if not np.all(values > 0):
            flat = f"client {int(np.argmin(values > 0))} without curvature ({source})"
            raise InvalidInput.found("task", flat, "losses that are not linear")
        return values, source

    @property
    def largest(self) -> float:
        """The largest smoothness of a client."""
        return float(self.smoothness.max())

    def step_size(self, schedule: Schedule) -> float:
        """Returns the step size of a theorem, see the function of this name."""
        interval = schedule.most_steps(self.task.train.largest)
        return local_gd.step_size(self.largest, interval)


def step_size(task: Task, schedule: Schedule, *, seeds: Sequence[int] = (0,)) -> float:
    r"""Returns the largest step size that Theorem 1 of Local GD allows on a task,
    $\gamma = \frac{1}{4LH}$.

    L is the smoothness of the least smooth client's loss, the task's l2 included, and H the most
    local steps of a client in a round. L is a bound for logistic and softmax regression and exact
    for quadratics. For other losses it is an estimate, which the true constant may exceed, see
    `fedax.theory.constants`.

    Args:
        task: what is learned, with all clients' examples.
        schedule: of the runs.
        seeds: of the runs, at least one. An estimate looks at the initial parameters of each.

    Raises:
        InvalidInput: a client's loss without curvature.

    >>> import fedax
    >>> task = fedax.Task(0.0, lambda w, x: (w - x) ** 2, [[1.0, 2.0], [5.0, 6.0]])
    >>> round(step_size(task, Schedule(steps=5, batch_size="full")), 4)
    0.025

    Source: Khaled, Mishchenko, Richtarik, First Analysis of Local GD on Heterogeneous Data
    (arXiv:1909.04715), Theorem 1.
    """
    return Measured(task, seeds=seeds).step_size(schedule)


CLOSED_FORM = "closed form, an upper bound"
EXACT = "exact, a quadratic"
ESTIMATE = f"estimate: {SAFETY:g} times the largest curvature along a trial path"


def closed_form(task: Task) -> Float[np.ndarray, "clients"] | None:
    """Returns each client's smoothness, with l2, as the task's loss states it by its method
    `smoothness`; None if it does not.

    The method gets a client's examples and returns an upper bound over all parameters, or None if
    it has none.
    """
    loss = getattr(task.loss, "function", task.loss)  # the user's
    state = getattr(loss, "smoothness", None)
    if not state:
        return None
    bounds = [state(task.train[k]) for k in range(task.train.clients)]
    if None in bounds:
        return None
    return np.array(bounds) * (1 + _ROUNDING) + task.l2


def is_quadratic(task: Task) -> bool:
    """Returns whether every example's loss is a quadratic function of the parameters.

    Decided by whether JAX can transpose the gradient's program, which it does for affine functions
    alone: a Hessian that is the same at some points would not tell quadratics from losses with
    kinks.

    Args:
        task: whose loss it is.
    """
    params = task.start(jax.random.key(0))
    # two examples are enough: the loss is the same function of each
    batch: Mapping[str, Any] = {
        name: jnp.asarray(values[:2]) for name, values in task.train.arrays.items()
    }

    gradient = jax.grad(lambda params: task.functions["loss"](params, batch, None).sum())
    try:
        jax.eval_shape(jax.linear_transpose(gradient, params), params)
    except Exception:  # missing rules of transposition raise errors of many kinds
        return False
    return True


def trial_smoothness(losses: Losses, start: np.ndarray) -> Float[np.ndarray, "clients"]:
    """Returns the largest curvature of each client's loss, l2 included, that a trial path from a
    start meets.

    Looked at are the Hessians at the start, at the origin, and in the middle and at the end of two
    minimisations by L-BFGS of a few steps: of the client's own loss and of the mean loss. The
    quotients of gradients and distances of all their trial points count too, so that a start in a
    flat region does not hide the curvature beyond it.

    Args:
        losses: of the task.
        start: the point that the path leaves, flat.
    """
    # points of every client: the start, the origin and the path of the mean loss
    shared = [start, np.zeros_like(start), *_try_path(losses, start, None)[0]]
    largest = []
    for client in range(losses.clients):
        points, quotient = _try_path(losses, start, client)
        curvatures = [_curvature(losses, w, client) for w in [*shared, *points]]
        largest.append(max([quotient, *curvatures]))
    return np.array(largest)


def _curvature(losses: Losses, w: np.ndarray, client: int | None) -> float:
    """Returns the largest absolute eigenvalue of a Hessian: 0 if that is not finite, less if the
    iteration does not converge.
    """
    # one product shows whether the Hessian is finite, before the iteration begins
    if not np.isfinite(losses.hessian_product(w, np.ones_like(w), client)).all():
        return 0.0
    no_convergence: Any = scipy.sparse.linalg.ArpackNoConvergence
    try:
        return smoothness(losses, w, client=client, tolerance=_COARSE)
    except no_convergence as error:
        # the largest of the eigenvalues that have converged
        return float(np.max(np.abs(error.eigenvalues), initial=0.0))


def _try_path(
    losses: Losses, start: np.ndarray, client: int | None
) -> tuple[list[np.ndarray], float]:
    """Minimises a client's loss, or the mean loss (None), by some steps.

    Returns the middle and the end of the path, and the largest quotient of gradients and distance
    of trial points that follow each other, which is a lower bound of the smoothness.
    """
    points: list[np.ndarray] = []
    gradients: list[np.ndarray] = []

    def evaluate(w: np.ndarray) -> tuple[float, np.ndarray]:
        points.append(w.astype(losses.start.dtype).astype(float))  # as the loss sees it
        value, gradient = losses.value_and_gradient(w, client)
        gradients.append(gradient)
        return value, gradient

    scipy.optimize.minimize(
        evaluate, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}
    )
    distances = np.linalg.norm(np.diff(points, axis=0), axis=1)
    changes = np.linalg.norm(np.diff(gradients, axis=0), axis=1)
    # smaller changes of a gradient could be its rounding
    rounding = 1e3 * jnp.finfo(losses.start.dtype).eps * np.linalg.norm(gradients, axis=1)
    counts = np.isfinite(changes) & (distances > 0) & (changes > rounding[:-1])
    quotients = changes[counts] / distances[counts]
    return [points[len(points) // 2], points[-1]], float(np.max(quotients, initial=0.0))
