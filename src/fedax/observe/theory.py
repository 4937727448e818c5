"""What bounds of theorems speak of, and what clients do in a round, seen along a run."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedax.core import Client, Constraint, Exact, InvalidInput, Minibatch
from fedax.core.hyper import hyper
from fedax.core.scheduling.local_work import real
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
        zero = jnp.zeros((), w.dtype)

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
        # minibatches of all clients count alike, so clients with many steps count more
        steps = count.sum()
        mean = total.sum() / jnp.where(steps > 0, steps, 1)
        return {"training_loss": jnp.where(steps > 0, mean, jnp.nan)}


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
            solved = view.method.solved(client, w, gradient, None)
            # methods other than FedDANE solve no such problem
            if solved is None:
                return undefined, undefined
            best = exact.minimize(client, solved.problem, w)
            distance = jnp.linalg.norm(best - w)
            error = jnp.linalg.norm(solved.solution - best)
            # 0 if neither has moved, infinite if only the solution has
            unmoved = jnp.where(error > 0, jnp.inf, 0)
            gamma = jnp.where(distance > 0, error / distance, unmoved)
            return gamma, jnp.asarray(solved.problem.prox, w.dtype)

        gamma, mu = view.each(measure)
        return {
            "inexactness": gamma,
            "inexactness_mean": gamma.mean(),
            "inexactness_largest": gamma.max(),
            "proximal": mu.min(),
        }


class Constraints(Observer):
    r"""The constraints $\lVert x_k - z \rVert^2 \le \gamma_k$ of FedBC.

    With every client's last model $x_k$:

    - `violation`, shape (clients,): $c_k = \lVert x_k - z \rVert^2 - \gamma_k$, above 0 where the
      constraint is violated; `violation_largest`, and `violated`, the part of the clients above 0.
    - `multiplier`, shape (clients,): $\lambda_k$; `multiplier_smallest` and `multiplier_largest`.
    - `lagrangian`: $\frac1N \sum_k (f_k(x_k) + \lambda_k c_k)$, with the task's l2; a pass over all
      training examples.

    Methods without constraints have $x_k = z$ and $\lambda_k = \gamma_k = 0$.

    Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815), eq. (7),
    (8), (19).
    """

    def __call__(self, view: View) -> dict[str, Array]:
        zeros = jnp.zeros(view.task.train.clients, view.w.dtype)
        # without constraints every client has the global model, and multipliers of 0
        constraints = view.constraints or Constraint(
            jnp.tile(view.w[None], (len(zeros), 1)), zeros, zeros
        )
        violation = ((constraints.model - view.w[None]) ** 2).sum(1) - constraints.tolerance
        return {
            "violation": violation,
            "violation_largest": violation.max(),
            "violated": (violation > 0).astype(violation.dtype).mean(),
            "multiplier": constraints.multiplier,
            "multiplier_smallest": constraints.multiplier.min(),
            "multiplier_largest": constraints.multiplier.max(),
            "lagrangian": (
                view.each(lambda client, x: client.loss(x), constraints.model)
                + constraints.multiplier * violation
            ).mean(),
        }


class SolveErrors(Observer):
    r"""Errors of the local problems of FedBC's next round, if all clients worked.

    The problems are $\min_x f_k(x) + \lambda_k \lVert x - z \rVert^2$:

    - `solve_error`, shape (clients,): $\varepsilon_k = \lVert \nabla f_k(x_k) + 2 \lambda_k (x_k -
      z) \rVert^2$ at each client's solution by the run's solver; `solve_error_largest`.
    - `solve_apart`: $\max_{k, j} \lVert x_k - x_j \rVert^2$, which the distance to no weighted mean
      of them exceeds.
    - `solve_heterogeneity`: $\delta$ of Assumption 4.3 at z, over the interval of the clients'
      multipliers.
    - `solve_heterogeneity_largest`: the same at the solutions, $\max_{k \ne j} \max_{a, b} \lVert a
      \nabla f_k(x_j) - b \nabla f_j(x_j) \rVert$.
    - `solve_smoothness`: the largest quotient $\lVert \nabla f_k(x_k) - \nabla f_k(x_j) \rVert /
      \lVert x_k - x_j \rVert$, which is L between the solutions.

    All but $\delta$ at z are what Lemma B.2 needs: `fedax.theory.fedbc.consensus_bound`. NaN for
    methods without constraints, and for Per-FedBC, whose local problem is another one. The learning
    rate, the number of steps and the minibatches of the local work are those of round 0. Costs the
    work of a round of all clients, and a gradient of each client at the solution of each other one.

    Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815), eq. (17),
    Assumption 4.3.
    """

    def __call__(self, view: View) -> dict[str, Array]:
        z = view.w
        constraints = view.constraints
        clients = view.task.train.clients
        undefined = dict.fromkeys(_OF_SOLUTIONS, jnp.full((), jnp.nan, z.dtype))
        undefined["solve_error"] = jnp.full(clients, jnp.nan, z.dtype)
        if constraints is None:
            return undefined
        low = constraints.multiplier.min()
        high = constraints.multiplier.max()

        def solve(client: Client, x: Array, lam: Array, gamma: Array) -> Any:
            gradient = client.gradient(z)
            local_solve = view.method.solved(client, z, gradient, Constraint(x, lam, gamma))
            # decided by the method, not by values: None for all clients
            if local_solve is None:
                return None
            residual = client.gradient_of(local_solve.problem, local_solve.solution)
            own_gradient = client.gradient(local_solve.solution)
            return local_solve.solution, (residual**2).sum(), gradient, own_gradient

        solutions = view.each(
            solve, constraints.model, constraints.multiplier, constraints.tolerance
        )
        if solutions is None:
            return undefined
        # shapes: (clients, dim), (clients,), (clients, dim), (clients, dim)
        models, errors, gradients, solution_gradients = solutions

        # this client's gradient at every client's solution, against that client's own
        def compare(
            client: Client, model: Array, own_gradient: Array, is_other: Array
        ) -> tuple[Array, Array]:
            def measure_at(solution: tuple[Array, Array]) -> tuple[Array, Array]:
                x, theirs = solution
                gradient = client.gradient(x)
                slope = _quotient(gradient - own_gradient, x - model, own_gradient)
                return _largest_distance(gradient, theirs, low, high), slope

            unlike, steep = jax.lax.map(measure_at, (models, solution_gradients))
            # `is_other` is 0 for the client itself
            return (unlike * is_other).max(), (steep * is_other).max()

        others = 1 - jnp.eye(clients, dtype=z.dtype)
        heterogeneity, smoothness = view.each(compare, models, solution_gradients, others)

        # one client at a time, so that clients x clients x dim numbers are never held
        def farthest(row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            x, gradient, is_other = row
            lengths = jax.vmap(lambda g: _largest_distance(gradient, g, low, high))(gradients)
            return ((models - x[None]) ** 2).sum(1).max(), jnp.where(is_other, lengths, 0).max()

        apart, unlike = jax.lax.map(farthest, (models, gradients, others > 0))
        return {
            "solve_error": errors,
            "solve_error_largest": errors.max(),
            "solve_apart": apart.max(),
            "solve_heterogeneity": unlike.max(),
            "solve_heterogeneity_largest": heterogeneity.max(),
            "solve_smoothness": smoothness.max(),
        }


_OF_SOLUTIONS: tuple[str, ...] = (
    "solve_error_largest",
    "solve_apart",
    "solve_heterogeneity",
    "solve_heterogeneity_largest",
    "solve_smoothness",
)


def _largest_distance(mine: Array, theirs: Array, low: Array, high: Array) -> Array:
    """Returns the largest distance of two gradients, each times a multiplier of the interval.

    It is attained at a corner.
    """
    corners = [jnp.linalg.norm(a * mine - b * theirs) for a in (low, high) for b in (low, high)]
    return jnp.stack(corners).max()


def _quotient(change: Array, moved: Array, gradient: Array) -> Array:
    """Returns the quotient of two lengths; 0 where rounding of the gradient would decide it."""
    slope = jnp.linalg.norm(change)
    distance = jnp.linalg.norm(moved)
    rounding = 1e3 * jnp.finfo(change.dtype).eps * jnp.linalg.norm(gradient)
    is_reliable = (distance > 0) & (slope > rounding)
    return jnp.where(is_reliable, slope / jnp.where(distance > 0, distance, 1), 0)


class LocalSpread(Observer):
    r"""The next round of local gradient descent, step by step.

    The H full-gradient steps that every client takes from the model.

    Arrays of shape (H,), at the steps $t = 0, \dots, H - 1$ after the synchronisation:

    - `spread`: $V_t = \frac1M \sum_m \lVert x^m_t - \hat x_t \rVert^2$ with the mean model
      $\hat x_t$.
    - `spread_gradient`: $\lVert g_t \rVert^2$, $g_t = \frac1M \sum_m \nabla f_m(x^m_t)$.
    - `spread_rate`: the step size $\gamma$, a number.
    - `spread_gap`, if the minimum is known: $D_f(\hat x_t, x_*) = f(\hat x_t) - f_*$.

    With a method that does something else they say what local gradient descent would do. All
    clients count alike. Costs about two rounds, and clients x H x dim numbers. Needs SGD without
    momentum or decay, `batch_size="full"`, and as many steps in every round.

    Args:
        minimum: $f_*$, if it is known.

    Raises:
        InvalidInput: another solver or schedule.

    Source: Khaled, Mishchenko, Richtarik, First Analysis of Local GD on Heterogeneous Data
    (arXiv:1909.04715), eq. (3), Lemmas 1 to 4; `fedax.theory.local_gd` has the bounds.
    """

    minimum: float | None = hyper(None)

    def __call__(self, view: View) -> dict[str, Array]:
        # clients of one example each: with full batches the steps do not depend on the sizes
        schedule, sizes = view.schedule, [1] * view.task.train.clients
        coin = schedule.sync_probability
        if (
            schedule.times is not None
            # a coin that always ends the round gives one step; others give random numbers of steps
            or not (coin is None or (real(coin) and coin == 1))
            or schedule.batch_size != "full"
            or not schedule.equal_steps(sizes)
        ):
            allowed = "schedules with batch_size='full' and as many steps in every round"
            raise InvalidInput.found("observe LocalSpread", "another schedule", allowed)
        steps, rate = schedule.most_steps(1)[1], view.solver.plain_step_size()
        if getattr(view.solver, "decay", 1) != 1:
            raise InvalidInput.of("observe LocalSpread", view.solver, "SGD without decay")

        def descend(client: Client) -> Any:
            def step(x: Float[Array, "dim"], _: None) -> Any:
                gradient = client.gradient(x)
                return x - rate * gradient, (x, gradient)

            # the points before each step, with their gradients: shape (H, dim)
            return jax.lax.scan(step, view.w, length=steps)[1]

        models, gradients = view.each(descend)  # shape (clients, H, dim)
        mean = models.mean(0)
        metrics = {
            # squared distances summed over dim, then the mean over clients: shape (H,)
            "spread": ((models - mean[None]) ** 2).sum(2).mean(0),
            "spread_gradient": (gradients.mean(0) ** 2).sum(1),
            "spread_rate": jnp.asarray(rate, view.w.dtype),
        }
        if self.minimum is None:
            return metrics
        # f at the mean model of each step: shape (clients, H)
        losses = view.each(lambda client: jax.lax.map(client.loss, mean))
        return metrics | {"spread_gap": losses.mean(0) - self.minimum}


class LocalWork(Observer):
    r"""The quantities of local training that the bounds of DFedAvgM need.

    And how unlike minibatches and clients are.

    - `local_steps`: K, the most steps of a round; `local_rate`: $\eta$ of round 0;
      `local_momentum`: $\theta$.
    - `mixing`: $\lambda$ of the graph, for one that changes the mean over a period; `graph_period`:
      the rounds after which the graph repeats, 1 for one that does not change. 0 and 1 with a
      server.
    - `rounding_square`: $d s^2$ of messages that are rounded to a grid of step s, 0 if they are
      not, NaN if the step differs by message or the codec is another; `rounding_down`: 1 if they
      are rounded down.
    - `gradient_largest`: $\max_k \lVert \nabla f_k(x_k) \rVert$, at each client's own model without
      a server, else at the global one: what Assumption 3's B must exceed.
    - `batch_variance`: the largest mean over a client's minibatches of
      $\lVert \nabla f_k(\cdot; \xi) - \nabla f_k \rVert^2$ there: $\sigma_l^2$ of Assumption 2. The
      minibatches are those of round 0, with one draw for all observations: with
      `Schedule(times=...)`, `sync_probability` or other drawn work as many as that round has.

    Costs a pass over the examples of all clients, and the minibatches of a round. Needs a solver
    with one step size.

    Source: Sun, Li and Wang, Decentralized Federated Averaging (arXiv:2104.11375), Assumptions 2
    and 3, Definition 1.
    """

    def __call__(self, view: View) -> dict[str, Array]:
        dtype = view.w.dtype
        clients = view.task.train.clients
        solver: Any = view.solver
        method: Any = view.method
        if not hasattr(solver, "learning_rate"):
            allowed = "solvers with a learning rate, such as SGD"
            raise InvalidInput.found("observe LocalWork", type(solver).__name__, allowed)
        # shape (clients, dim)
        models = view.nodes if view.nodes is not None else jnp.tile(view.w[None], (clients, 1))
        zero = jnp.zeros((), dtype)

        def measure(
            client: Client, w: Float[Array, "dim"]
        ) -> tuple[Float[Array, ""], Float[Array, ""]]:
            # the full gradient, and the model as a pytree, which minibatches take
            full_gradient = client.gradient(w)
            params = client.layout.unravel(w)

            def add(carry: tuple[Array, Array], batch: Minibatch) -> tuple[Array, Array]:
                deviation = client.layout.ravel(batch.gradient(params)) - full_gradient
                return carry[0] + deviation @ deviation, carry[1] + 1

            total, count = client.for_each_minibatch(add, (zero, zero))
            mean = total / jnp.where(count > 0, count, 1)
            return full_gradient @ full_gradient, jnp.where(count > 0, mean, 0)

        # each of shape (clients,)
        squares, noise = view.each(measure, models)
        mixing: Any = 0.0
        period: Any = 1
        if view.nodes is not None:
            # mixing the identity gives the product of the matrices of a period
            graph = method.network(clients)
            product = jnp.eye(clients, dtype=dtype)
            for t in range(graph.period):
                product = graph.mix(product, t)
            # distance to complete averaging, as a geometric mean over the rounds
            mixing = jnp.linalg.norm(product - 1 / clients, 2) ** (1 / graph.period)
            # infinite without a fixed doubly stochastic matrix; the weights may be traced
            sum_error = jnp.maximum(
                jnp.abs(product.sum(0) - 1).max(), jnp.abs(product.sum(1) - 1).max()
            )
            is_fixed = (sum_error < 1e-4) & (not (graph.is_random or graph.noise))
            period = jnp.where(is_fixed, graph.period, math.inf)
        # the step of the grid of messages: NaN where it differs by message, or a codec decides
        grid = getattr(method, "step", 0.0)
        if getattr(method, "code", None) is not None or (not grid and hasattr(method, "rounding")):
            grid = jnp.nan
        metrics = {
            "local_steps": view.schedule.most_steps(view.task.train.largest)[1],
            "local_rate": solver.learning_rate,
            "local_momentum": getattr(solver, "momentum", 0.0),
            "mixing": mixing,
            "graph_period": period,
            "rounding_square": view.w.shape[0] * grid**2,
            "rounding_down": float(getattr(method, "rounding", "") == "floor"),
            "gradient_largest": jnp.sqrt(squares.max()),
            "batch_variance": noise.max(),
        }
        return {name: jnp.asarray(value, dtype) for name, value in metrics.items()}
