"""The exactness of local solutions, in the sense of FedDANE's Definition 1."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client, Exact
from fedax.observe.base import Observer, View, count_field


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

    max_steps: int = count_field(500)

    def __call__(self, view: View) -> dict[str, Any]:
        w, gradient = view.w, view.gradients().mean.astype(view.w.dtype)
        # a tolerance near rounding: the minimiser has to be much more exact than the solution
        exact = Exact(tol=float(jnp.finfo(w.dtype).eps) ** 0.6, max_steps=self.max_steps)

        def measure(client: Client) -> tuple[Float[Array, ""], Float[Array, ""]]:
            solved = view.method.solved(client, w, gradient, None)
            # methods other than FedDANE solve no such problem
            if solved is None:
                return jnp.full((), jnp.nan, w.dtype), jnp.full((), jnp.nan, w.dtype)
            best = exact.minimize(client, solved.problem, w)
            distance = jnp.linalg.norm(best - w)
            error = jnp.linalg.norm(solved.solution - best)
            # 0 if neither has moved, infinite if only the solution has
            return jnp.where(
                distance > 0, error / distance, jnp.where(error > 0, jnp.inf, 0)
            ), jnp.asarray(solved.problem.prox, w.dtype)

        gamma, mu = view.each(measure)
        return {
            "inexactness": gamma,
            "inexactness_mean": gamma.mean(),
            "inexactness_largest": gamma.max(),
            "proximal": mu.min(),
        }
