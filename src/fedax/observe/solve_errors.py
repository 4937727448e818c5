"""The exactness of FedBC's local solutions, and how far they leave the local models apart."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client, Constraint
from fedax.observe.base import Observer, View


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

    def __call__(self, view: View) -> dict[str, Any]:
        z, constraints, clients = view.w, view.constraints, view.task.train.clients
        if constraints is None:
            return self._undefined_metrics(clients, z.dtype)
        # each with a first axis over clients
        rows = (constraints.model, constraints.multiplier, constraints.tolerance)

        def solve(client: Client, x: Any, lam: Any, gamma: Any) -> Any:
            gradient = client.gradient(z)
            local_solve = view.method.solved(client, z, gradient, Constraint(x, lam, gamma))
            # decided by the method, not by values: None for all clients
            if local_solve is None:
                return None
            residual = client.gradient_of(local_solve.problem, local_solve.solution)
            return (
                local_solve.solution,
                (residual**2).sum(),
                gradient,
                client.gradient(local_solve.solution),
            )

        solutions = view.each(solve, *rows)
        if solutions is None:
            return self._undefined_metrics(clients, z.dtype)
        # shapes: (clients, dim), (clients,), (clients, dim), (clients, dim)
        models, errors, gradients, solution_gradients = solutions
        low, high = constraints.multiplier.min(), constraints.multiplier.max()

        # this client's gradient at every client's solution, against that client's own
        def compare(
            client: Client, model: Any, own_gradient: Any, is_other: Any
        ) -> tuple[Array, Array]:
            def measure_at(solution: tuple[Array, Array]) -> tuple[Array, Array]:
                x, theirs = solution
                gradient = client.gradient(x)
                return _largest_distance(gradient, theirs, low, high), _quotient(
                    gradient - own_gradient, x - model, own_gradient
                )

            unlike, steep = jax.lax.map(measure_at, (models, solution_gradients))
            # `other` is 0 for the client itself
            return (unlike * is_other).max(), (steep * is_other).max()

        heterogeneity, smoothness = view.each(
            compare, models, solution_gradients, 1 - jnp.eye(clients, dtype=z.dtype)
        )
        return {
            "solve_error": errors,
            "solve_error_largest": errors.max(),
            # one model at a time, so that clients x clients x dim numbers are never held
            "solve_apart": jax.lax.map(
                lambda x: ((models - x[None]) ** 2).sum(1).max(), models
            ).max(),
            "solve_heterogeneity": _heterogeneity(gradients, low, high),
            "solve_heterogeneity_largest": heterogeneity.max(),
            "solve_smoothness": smoothness.max(),
        }

    def _undefined_metrics(self, clients: int, dtype: Any) -> dict[str, Any]:
        none = jnp.full((), jnp.nan, dtype)
        names = (
            "solve_error_largest",
            "solve_apart",
            "solve_heterogeneity",
            "solve_heterogeneity_largest",
            "solve_smoothness",
        )
        return {"solve_error": jnp.full(clients, jnp.nan, dtype)} | dict.fromkeys(names, none)


def _largest_distance(mine: Array, theirs: Array, low: Array, high: Array) -> Array:
    """Returns the largest distance of two gradients, each times a multiplier of the interval.

    It is attained at a corner.
    """
    return jnp.stack(
        [jnp.linalg.norm(a * mine - b * theirs) for a in (low, high) for b in (low, high)]
    ).max()


def _quotient(change: Array, moved: Array, gradient: Array) -> Array:
    """Returns the quotient of two lengths; 0 where rounding of the gradient would decide it."""
    slope, distance = jnp.linalg.norm(change), jnp.linalg.norm(moved)
    is_reliable = (distance > 0) & (
        slope > 1e3 * jnp.finfo(change.dtype).eps * jnp.linalg.norm(gradient)
    )
    return jnp.where(is_reliable, slope / jnp.where(distance > 0, distance, 1), 0)


def _heterogeneity(
    gradients: Float[Array, "clients dim"], low: Float[Array, ""], high: Float[Array, ""]
) -> Float[Array, ""]:
    """Returns the largest distance of two clients' gradients, each times its worst multiplier."""

    def farthest_from(k: Any) -> Float[Array, ""]:
        corners = [a * gradients[k][None] - b * gradients for a in (low, high) for b in (low, high)]
        lengths = jnp.stack([jnp.linalg.norm(corner, axis=1) for corner in corners]).max(0)
        return jnp.where(jnp.arange(len(gradients)) == k, 0, lengths).max()

    return jax.lax.map(farthest_from, jnp.arange(len(gradients))).max()
