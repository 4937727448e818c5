"""The curvature of the clients' losses along a run."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client
from fedax.numerics.lanczos import extremes
from fedax.observe.base import Observer, View, count_field


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

    steps: int = count_field(30)

    def __call__(self, view: View) -> dict[str, Any]:
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
