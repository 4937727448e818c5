"""The exactness of FedBC's local solutions, and how far they leave the local models apart."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client, Constraint, Observer, View


class SolveErrors(Observer):
    r"""Of the local problems $\min_x f_k(x) + \lambda_k \lVert x - z \rVert^2$ of FedBC's next round, if everybody worked.

    - `solve_error`, shape (clients,): $\varepsilon_k = \lVert \nabla f_k(x_k) + 2 \lambda_k (x_k - z) \rVert^2$ at each client's
      solution by the run's solver; `solve_error_largest`.
    - `solve_apart`: $\max_{k, j} \lVert x_k - x_j \rVert^2$, which the distance to no weighted mean of them exceeds.
    - `solve_heterogeneity`: $\delta$ of Assumption 4.3 at z, over the interval of the clients' multipliers.

    These are what Lemma B.2 needs: `fedax.theory.fedbc.consensus_bound`. NaN for methods without constraints, and for Per-FedBC,
    whose local problem is another one. Costs the work of a round of everybody.

    Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815), eq. (17), Assumption 4.3.
    """

    def __call__(self, view: View) -> dict[str, Any]:
        z, held, clients = view.w, view.constraints, view.task.train.clients
        if held is None:
            return self._nothing(clients, z.dtype)
        rows = (held.model, held.multiplier, held.tolerance)

        def solve(client: Client, x: Any, lam: Any, gamma: Any) -> Any:
            gradient = client.gradient(z)
            found = view.method.solved(client, z, gradient, Constraint(x, lam, gamma))
            if found is None:
                return None
            return found.solution, (client.gradient_of(found.problem, found.solution) ** 2).sum(), gradient

        found = view.each(solve, *rows)
        if found is None:
            return self._nothing(clients, z.dtype)
        models, errors, gradients = found
        return {
            "solve_error": errors,
            "solve_error_largest": errors.max(),
            "solve_apart": jax.lax.map(lambda x: ((models - x[None]) ** 2).sum(1).max(), models).max(),
            "solve_heterogeneity": _heterogeneity(gradients, held.multiplier.min(), held.multiplier.max()),
        }

    def _nothing(self, clients: int, dtype: Any) -> dict[str, Any]:
        none = jnp.full((), jnp.nan, dtype)
        names = ("solve_error_largest", "solve_apart", "solve_heterogeneity")
        return {"solve_error": jnp.full(clients, jnp.nan, dtype)} | dict.fromkeys(names, none)


def _heterogeneity(
    gradients: Float[Array, "clients dim"], low: Float[Array, ""], high: Float[Array, ""]
) -> Float[Array, ""]:
    """The largest distance of two clients' gradients, each times the multiplier that is worst."""

    def of(k: Any) -> Float[Array, ""]:
        corners = [a * gradients[k][None] - b * gradients for a in (low, high) for b in (low, high)]
        lengths = jnp.stack([jnp.linalg.norm(corner, axis=1) for corner in corners]).max(0)
        return jnp.where(jnp.arange(len(gradients)) == k, 0, lengths).max()

    return jax.lax.map(of, jnp.arange(len(gradients))).max()
