"""A run against a known minimiser."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedax.core import Client, DataError, InvalidInput
from fedax.examples.arrays import as_array
from fedax.observe.base import Observer, View


def _flat_point(value: Any) -> Array | np.ndarray:
    if isinstance(value, jax.Array):
        return value
    try:
        array = as_array(value, "Optimum(point=...)")
    except DataError as error:
        raise InvalidInput.found(
            "Optimum(point=...)",
            type(value).__name__,
            "a flat vector of real numbers",
            "Of a model's parameters, write jax.flatten_util.ravel_pytree(params)[0].",
        ) from error
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
