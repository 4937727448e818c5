"""How the global model serves the single clients."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from fedax.core import Observer, Task, View
from fedax.observe.accuracy import needs


class ClientAccuracy(Observer):
    """A score of the global model on each client's own test examples.

    Gives `client_<score>` (one per client, NaN for a client without test examples) and, over the clients that have some,
    `..._mean`, `..._variance`, `..._worst_tenth` (mean of the lowest tenth, rounded up to whole clients), `..._smallest` and
    `..._largest` (the clients with the fewest and the most training examples; the first of several).

    Args:
        score: a score of the task.
    """

    score: str = eqx.field(static=True, default="accuracy")

    def __call__(self, view: View) -> dict[str, Any]:
        values, name = view.per_client("test", self.score), f"client_{self.score}"
        known = jnp.isfinite(values)
        count = known.sum(dtype=values.dtype)
        mean = jnp.where(known, values, 0).sum() / count
        ranked = jnp.sort(jnp.where(known, values, jnp.inf))
        tenth = jnp.arange(ranked.shape[0], dtype=values.dtype) < jnp.ceil(count / 10)
        sizes = jnp.asarray(view.task.train.sizes).astype(values.dtype)
        return {
            name: values,
            f"{name}_mean": mean,
            f"{name}_variance": jnp.where(known, (values - mean) ** 2, 0).sum() / count,
            f"{name}_worst_tenth": jnp.where(tenth, ranked, 0).sum() / tenth.sum(dtype=values.dtype),
            f"{name}_smallest": values[jnp.argmin(jnp.where(known, sizes, math.inf))],
            f"{name}_largest": values[jnp.argmax(jnp.where(known, sizes, -1))],
        }

    def check(self, task: Task) -> None:
        needs(self, task, self.score, task.test)
