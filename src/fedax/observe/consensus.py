"""Without a server: how far the clients' models are apart, and how good each is."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from fedax.core import Task
from fedax.core.directions import Mode, mode_field
from fedax.observe.accuracy import check_split_and_score, score_modes
from fedax.observe.base import Observer, View


class Consensus(Observer):
    r"""`consensus`: the mean distance of the clients' models to their mean.

    $\frac1m \sum_i \lVert x_i - \bar x \rVert$.

    0 for methods with a server.
    """

    lower_is_better = ("consensus",)

    def __call__(self, view: View) -> dict[str, Any]:
        if view.nodes is None:
            return {"consensus": jnp.zeros((), view.w.dtype)}
        deviations = view.nodes - view.nodes.mean(0, keepdims=True)
        return {"consensus": jnp.linalg.norm(deviations, axis=1).mean()}


class NodeAccuracy(Observer):
    """`node_<score>_mean`, `_min` and `_max`: each client's model on the central test set.

    A score of the task, over the clients.

    With a server all three are the score of the global model.

    Args:
        score: a score of the task.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.
    """

    score: str = eqx.field(static=True, default="accuracy")
    mode: Mode | None = mode_field()

    def __call__(self, view: View) -> dict[str, Any]:
        values, name = view.per_node(self.score), f"node_{self.score}"
        return {
            f"{name}_mean": values.mean(),
            f"{name}_min": values.min(),
            f"{name}_max": values.max(),
        }

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        return score_modes(
            self, scores, *(f"node_{self.score}_{ending}" for ending in ("mean", "min", "max"))
        )

    def check(self, task: Task) -> None:
        check_split_and_score(self, task, self.score, task.test_set)
