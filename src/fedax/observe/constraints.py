"""The proximity constraints of FedBC, and its Lagrangian."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client, Constraint
from fedax.observe.base import Observer, View


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

    def __call__(self, view: View) -> dict[str, Any]:
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
                view.each(_loss, constraints.model) + constraints.multiplier * violation
            ).mean(),
        }


def _loss(client: Client, w: Float[Array, "dim"]) -> Float[Array, ""]:
    return client.loss(w)
