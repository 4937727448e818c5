"""Without a server: how far the clients' models are apart, and how good each is."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from fedax.core import Observer, Task, View
from fedax.observe.accuracy import needs


class Consensus(Observer):
    r"""`consensus`: $\frac1m \sum_i \lVert x_i - \bar x \rVert$, the mean distance of the clients' models to their mean.

    0 for methods with a server.
    """

    def __call__(self, view: View) -> dict[str, Any]:
        if view.nodes is None:
            return {"consensus": jnp.zeros((), view.w.dtype)}
        off = view.nodes - view.nodes.mean(0, keepdims=True)
        return {"consensus": jnp.linalg.norm(off, axis=1).mean()}


class NodeAccuracy(Observer):
    """`node_<score>_mean`, `_min` and `_max`: a score of each client's own model on the global test set, over the clients.

    With a server all three are the score of the global model.

    Args:
        score: a score of the task.
    """

    score: str = eqx.field(static=True, default="accuracy")

    def __call__(self, view: View) -> dict[str, Any]:
        values, name = view.per_node(self.score), f"node_{self.score}"
        return {f"{name}_mean": values.mean(), f"{name}_min": values.min(), f"{name}_max": values.max()}

    def check(self, task: Task) -> None:
        needs(self, task, self.score, task.test_set)
