"""What bounds of theorems speak of, and what clients do in a round, seen along a run."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedax.core import Client, Exact, InvalidInput, Minibatch
from fedax.core.hyper import hyper
from fedax.examples.arrays import as_array
from fedax.numerics.lanczos import extremes
from fedax.observe.base import Observer, View


class TrainingLoss(Observer):
    """Computes the mean minibatch loss while clients train, as many released codes log it.

    `training_loss` is the mean over all minibatches of the clients that worked last, each before
    its step, if they train once more from the current model, each client once. It includes l2. It
    is lower than the loss of the global model on the same examples as soon as local steps help, and
    the more so the fewer classes a client has. A log during training has the cohort that made the
    model too, from the model before. NaN before the first round.

    The learning rate, the number of steps and the minibatches are those of round 0, with one draw
    for all observations. They differ from those of a round with a solver whose learning rate
    changes, with `Schedule(times=...)`, and with work that is drawn, as by `sync_probability`,
    `stragglers`, or a range of epochs, steps or batch sizes.

    Costs the local work of a cohort at every observation. Needs a solver with one step size.

    Source: the `train_loss` of FedLab's trainers, and of the code of Zeng et al., FedAWARE
    (arXiv:2310.02702).
    """

    def __call__(self, view: View) -> dict[str, Array]:
        w = view.w
        cohort = view.cohort()
        clients = view.task.train.clients
        # marks by client; padding of the cohort has no number that a client has, and is dropped
        owners = jnp.where(cohort.works, cohort.ids, clients)
        is_drawn = jnp.zeros(clients, w.dtype).at[owners].set(1, mode="drop")
        zero = jnp.zeros((), view.sizes.dtype)

        def train(client: Client) -> tuple[Float[Array, ""], Float[Array, ""]]:
            layout = client.layout
            rate = client.plain_learning_rate

            def step(carry: tuple[Any, ...], batch: Minibatch) -> tuple[Any, ...]:
                x, total, count = carry
                params = layout.unravel(x)
                # the loss is taken before the step
                moved = x - rate * layout.ravel(batch.gradient(params))
                return moved, total + batch.loss(params), count + 1

            _, total, count = client.for_each_minibatch(step, (w, zero, zero))
            return total, count

        # a branch that is not taken costs nothing: the other clients do not train
        total, count = view.each(
            lambda client, is_drawn: jax.lax.cond(
                is_drawn > 0, lambda: train(client), lambda: (zero, zero)
            ),
            is_drawn,
        )
        # minibatches of all clients count alike, so clients with many steps count more; 0/0 is NaN
        return {"training_loss": total.sum() / count.sum()}


def _flat_point(value: Any) -> Array | np.ndarray:
    if isinstance(value, jax.Array):
        return value
    array = as_array(value, "Optimum(point=...)")
    return array if array.dtype.kind == "f" else array.astype(float)


class Optimum(Observer):
    r"""The distance of a run to a known minimiser $x_*$ of the objective.

    - `distance`: $\lVert w - x_* \rVert$.
    - `optimum_gap`: $f(w) - f(x_*)$, with the task's l2.
    - `optimum_variance`: $\sigma^2 = \frac1M \sum_k \lVert \nabla f_k(x_*) \rVert^2$, the same at
      each observation.

    Args:
        point: $x_*$, flat, an array or a list of numbers; `fedax.theory.estimate.optimum` finds it.

    Raises:
        InvalidInput: a point of another size, or one that is no vector of numbers.

    Source: Khaled, Mishchenko, Richtarik, First Analysis of Local GD on Heterogeneous Data
    (arXiv:1909.04715), Theorem 1.
    """

    point: Float[Array | np.ndarray, "dim"] = eqx.field(converter=_flat_point)

    lower_is_better = ("distance", "optimum_gap")

    def __call__(self, view: View) -> dict[str, Array]:
        if self.point.shape != view.w.shape:
            allowed = f"a flat vector of {view.w.shape[0]} numbers"
            raise InvalidInput.found("Optimum(point=...)", f"shape {self.point.shape}", allowed)
        best = jnp.asarray(self.point, view.w.dtype)

        def measure(client: Client) -> tuple[Float[Array, ""], Float[Array, ""]]:
            gradient = client.gradient(best)
            return client.loss(view.w) - client.loss(best), gradient @ gradient

        gaps, squares = view.each(measure)
        return {
            "distance": jnp.linalg.norm(view.w - best),
            "optimum_gap": view.share.astype(gaps.dtype) @ gaps,
            "optimum_variance": squares.mean(),
        }


class Curvature(Observer):
    r"""The ends of the spectrum of each client's Hessian at the global model, with the task's l2.

    - `smoothness`, shape (clients,): the largest absolute eigenvalue of $\nabla^2 f_k(w)$;
      `smoothness_largest`.
    - `eigenvalue`, shape (clients,): the lowest one; `eigenvalue_lowest`, $-\lambda$ of FedDANE's
      Theorem 5 where it is below 0.

    Found by Lanczos iterations, whose values lie inside the spectrum: smoothness from below, lowest
    eigenvalues from above. A client costs as many Hessian products as there are steps, each about
    two gradients.

    Args:
        steps: of the iteration, at least 1.

    Raises:
        InvalidInput: other steps.
    """

    steps: int = hyper(30, low=1)

    def __call__(self, view: View) -> dict[str, Array]:
        start = jax.random.normal(jax.random.key(0), view.w.shape, view.w.dtype)

        # a fixed start: observers draw nothing from the run's streams
        def ends(client: Client) -> tuple[Float[Array, ""], Float[Array, ""]]:
            return extremes(lambda v: client.hessian_product(view.w, v), start, self.steps)

        low, high = view.each(ends)
        # a negative eigenvalue may be the largest in absolute value
        largest = jnp.maximum(jnp.abs(low), jnp.abs(high))
        return {
            "smoothness": largest,
            "smoothness_largest": largest.max(),
            "eigenvalue": low,
            "eigenvalue_lowest": low.min(),
        }


class Inexactness(Observer):
    r"""How exact the local solutions of the next round are.

    $\gamma_k = \lVert w_k - \underline w_k \rVert / \lVert \underline w_k - w \rVert$.

    With $\nabla f(w)$ instead of its estimate, $w_k$ is each client's solution of its local
    problem by the run's solver, and $\underline w_k$ the minimiser of that problem *as the paper
    has it*: a method that solves another one is inexact.

    - `inexactness`, shape (clients,), `inexactness_mean`, `inexactness_largest`; 0 is exact, and
      theorems need less than 1.
    - `proximal`: $\mu$, the smallest of a client.

    For FedDANE, its decayed and pipelined forms as in round 0, as are the learning rate and the
    number of steps of the local work; NaN for other methods. Costs the work of a round of all
    clients, and a solution to stationarity for each client.

    Args:
        max_steps: iterations of BFGS for the minimiser, at least 1.

    Raises:
        InvalidInput: other steps.

    Source: Li et al., FedDANE: A Federated Newton-Type Method (arXiv:2001.01920), Definition 1.
    """

    max_steps: int = hyper(500, low=1)

    def __call__(self, view: View) -> dict[str, Array]:
        w = view.w
        gradient = view.gradients().mean.astype(w.dtype)
        undefined = jnp.full((), jnp.nan, w.dtype)
        # a tolerance near rounding: the minimiser has to be much more exact than the solution
        exact = Exact(tol=float(jnp.finfo(w.dtype).eps) ** 0.6, max_steps=self.max_steps)

        def measure(client: Client) -> tuple[Float[Array, ""], Float[Array, ""]]:
            solved = view.method.solved(client, w, gradient)
            # methods other than FedDANE solve no such problem
            if solved is None:
                return undefined, undefined
            best = exact.minimize(client, solved.problem, w)
            distance = jnp.linalg.norm(best - w)
            error = jnp.linalg.norm(solved.solution - best)
            # 0 if neither has moved; a division by 0 gives infinity if only the solution has
            gamma = jnp.where(error == 0, 0, error / distance)
            return gamma, jnp.asarray(solved.problem.prox, w.dtype)

        gamma, mu = view.each(measure)
        return {
            "inexactness": gamma,
            "inexactness_mean": gamma.mean(),
            "inexactness_largest": gamma.max(),
            "proximal": mu.min(),
        }
