"""Fairness: the global model on the data of the single clients."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from fedax.core import Observer, Task, View
from fedax.observe.accuracy import needs


class ClientAccuracy(Observer):
    """A score of the global model, or of the clients' own models, on each client's own test examples.

    Gives `client_<score>` (one per client, NaN for a client without test examples) and, over the clients that have some,
    `..._mean`, `..._variance`, `..._pooled` (every test example counts alike), `..._worst_tenth` (mean of the lowest tenth,
    rounded up to whole clients), `..._smallest` and `..._largest` (the clients with the fewest and the most training examples;
    the first of several). With `personal` the names begin with `local_`.

    Args:
        score: a score of the task.
        personal: whether each client uses its own model, for methods that have such (see `Algorithm.personal`).
    """

    score: str = eqx.field(static=True, default="accuracy")
    personal: bool = eqx.field(static=True, default=False)

    def __call__(self, view: View) -> dict[str, Any]:
        values = (view.personal if self.personal else view.per_client)("test", self.score)
        name = f"{'local' if self.personal else 'client'}_{self.score}"
        known = jnp.isfinite(values)
        count = known.sum(dtype=values.dtype)
        mean = jnp.where(known, values, 0).sum() / count
        ranked = jnp.sort(jnp.where(known, values, jnp.inf))
        tenth = jnp.arange(ranked.shape[0], dtype=values.dtype) < jnp.ceil(count / 10)
        sizes, tests = (
            jnp.asarray(d.sizes).astype(values.dtype) for d in (view.task.train, view.task.test) if d is not None
        )
        return {
            name: values,
            f"{name}_mean": mean,
            f"{name}_variance": jnp.where(known, (values - mean) ** 2, 0).sum() / count,
            f"{name}_pooled": jnp.where(known, tests * values, 0).sum() / tests.sum(),
            f"{name}_worst_tenth": jnp.where(tenth, ranked, 0).sum() / tenth.sum(dtype=values.dtype),
            f"{name}_smallest": values[jnp.argmin(jnp.where(known, sizes, math.inf))],
            f"{name}_largest": values[jnp.argmax(jnp.where(known, sizes, -1))],
        }

    def check(self, task: Task) -> None:
        needs(self, task, self.score, task.test)


def LocalAccuracy() -> ClientAccuracy:
    """`local_accuracy`: accuracy of each client's own model on its own test examples, and statistics of it."""
    return ClientAccuracy(personal=True)
