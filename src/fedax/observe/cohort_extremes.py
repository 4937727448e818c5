"""The smallest and the largest client of each cohort."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Task
from fedax.core.directions import Mode, mode_field
from fedax.observe.accuracy import needs, score_modes
from fedax.observe.base import Observer, View
from fedax.observe.weights import normalized_weights


class Extremes(Observer):
    r"""The smallest and the largest of the clients S that worked last.

    Those with the fewest and the most training examples; the first of several.

    S is the cohort of the last phase of the last round (see `View.cohort`).

    - `weight_smallest`, `weight_largest` and `weight_gap`, their distance: the part
      $w_k / \sum_{j \in S} w_j$ that they have in a mean, with the method's own weights where it
      remembers them (FedBC: its multipliers), else, and where those are all zero, with the
      cohort's: $w_k = n_k$, or equal ones where the schedule's weights or its sampling ask for
      them.
    - `share_smallest`, `share_largest` and `share_gap`: the same with $w_k = n_k$.
    - `drawn_<score>_smallest`, `..._largest` and `..._gap`: a score of the global model on their
      own test examples.

    All are NaN before the first round, and after one that no client took part in.

    Args:
        score: a score of the task.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.

    Source: the "min user" and "max user" of Bedi et al., FedBC (arXiv:2206.10815), Fig. 3, 4, 8 to
    13.
    """

    score: str = eqx.field(static=True, default="accuracy")
    mode: Mode | None = mode_field()

    def __call__(self, view: View) -> dict[str, Any]:
        # shape (capacity,), with padding from `count` on
        cohort, sizes = view.cohort(), jnp.asarray(view.task.train.sizes).astype(view.w.dtype)
        present = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32) < cohort.count
        drawn = sizes[cohort.ids]
        # padding must never win: infinite for the smallest, -1 for the largest
        smallest = jnp.argmin(jnp.where(present, drawn, jnp.inf))
        largest = jnp.argmax(jnp.where(present, drawn, -1))

        def pair(name: str, values: Float[Array, "capacity"]) -> dict[str, Any]:
            low, high = (
                jnp.where(cohort.count > 0, values[i], jnp.nan) for i in (smallest, largest)
            )
            return {
                f"{name}_smallest": low,
                f"{name}_largest": high,
                f"{name}_gap": jnp.abs(high - low),
            }

        # the method's own weights, zero for padding
        own = None if view.weights is None else jnp.where(present, view.weights[cohort.ids], 0)
        weight, share = (
            normalized_weights(jnp.where(present, cohort.weights, 0), own),
            normalized_weights(jnp.where(present, drawn, 0)),
        )
        scores = view.per_client("test", self.score)[cohort.ids]
        return pair("weight", weight) | pair("share", share) | pair(f"drawn_{self.score}", scores)

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        name = f"drawn_{self.score}"
        gaps: dict[str, Mode] = {"weight_gap": "min", f"{name}_gap": "min"}
        return gaps | score_modes(self, scores, f"{name}_smallest", f"{name}_largest")

    def check(self, task: Task) -> None:
        needs(self, task, self.score, task.test)
