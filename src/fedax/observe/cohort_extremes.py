"""The smallest and the largest client of each cohort."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Task
from fedax.core.directions import Mode, mode_field
from fedax.observe.accuracy import check_split_and_score, score_modes
from fedax.observe.base import Observer, View
from fedax.observe.weights import normalized_weights


class Extremes(Observer):
    r"""The smallest and the largest of the clients S that worked last.

    Those with the fewest and the most training examples; the first of several.

    S is the cohort of the last phase of the last round (see `View.cohort`). A client that was drawn
    twice worked twice: its weight in the mean is that of both draws, while its share counts once.

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
        slots = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32)
        is_valid = slots < cohort.count
        cohort_sizes = sizes[cohort.ids]
        # padding gets a number that no client has, so that it is dropped
        owners = jnp.where(is_valid, cohort.ids, len(sizes))
        # a draw with replacement may have a client in several slots
        first_slots = jnp.full(len(sizes), len(slots), jnp.int32)
        first_slots = first_slots.at[owners].min(slots, mode="drop")
        is_first = is_valid & (first_slots[cohort.ids] == slots)
        # padding must never win: infinite for the smallest, -1 for the largest
        smallest = jnp.argmin(jnp.where(is_valid, cohort_sizes, jnp.inf))
        largest = jnp.argmax(jnp.where(is_valid, cohort_sizes, -1))

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
        method_weights = (
            None if view.weights is None else jnp.where(is_valid, view.weights[cohort.ids], 0)
        )
        weight, share = (
            normalized_weights(jnp.where(is_valid, cohort.weights, 0), method_weights),
            normalized_weights(jnp.where(is_first, cohort_sizes, 0)),
        )
        # by slot, the weight of all draws of its client
        weight = jnp.zeros_like(sizes, weight.dtype).at[owners].add(weight, mode="drop")[cohort.ids]
        scores = view.per_client("test", self.score)[cohort.ids]
        return pair("weight", weight) | pair("share", share) | pair(f"drawn_{self.score}", scores)

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        name = f"drawn_{self.score}"
        gaps: dict[str, Mode] = {"weight_gap": "min", f"{name}_gap": "min"}
        return gaps | score_modes(self, scores, f"{name}_smallest", f"{name}_largest")

    def check(self, task: Task) -> None:
        check_split_and_score(self, task, self.score, task.test)
