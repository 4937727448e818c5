"""A run against a known minimiser."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client, InvalidInput
from fedax.observe.base import Observer, View


class Optimum(Observer):
    r"""The distance of a run to a known minimiser $x_*$ of the objective.

    - `distance`: $\lVert w - x_* \rVert$.
    - `optimum_gap`: $f(w) - f(x_*)$, with the task's l2.
    - `optimum_variance`: $\sigma^2 = \frac1M \sum_k \lVert \nabla f_k(x_*) \rVert^2$, the same at
      each observation.

    Args:
        point: $x_*$, flat; `fedax.theory.estimate.optimum` finds it.

    Raises:
        InvalidInput: a point of another size.

    Source: Khaled, Mishchenko, Richtarik, First Analysis of Local GD on Heterogeneous Data
    (arXiv:1909.04715), Theorem 1.
    """

    point: Float[Array, "dim"]

    lower_is_better = ("distance", "optimum_gap")

    def __call__(self, view: View) -> dict[str, Any]:
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
