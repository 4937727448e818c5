"""Clients that never took part: how the model serves them, before and after adapting to each."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from fedax.core import InvalidInput, Task
from fedax.core.directions import Mode, mode_field
from fedax.observe.accuracy import check_split_and_score, score_modes
from fedax.observe.base import Observer, View, count_field


class Unseen(Observer):
    """The global model on clients that never take part, before and after adapting.

    On their test examples; see `FederatedData.with_unseen`.

    - `unseen_<score>`: the mean over these clients, who count alike; those without test examples
      are left out.
    - `unseen_<score>_adapted`: the same after `steps` local steps on the client's own training
      examples, of the run's solver, at its first learning rate, with the batch size of the
      schedule. Each client begins at the global model, and forgets.
    - `unseen_<score>_each`, `unseen_<score>_adapted_each`: by client, NaN for one without
      test examples.

    Args:
        score: `"loss"`, or a score of the task.
        steps: local steps, at least 1.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.
    """

    score: str = eqx.field(static=True, default="accuracy")
    steps: int = count_field(5)
    mode: Mode | None = mode_field()

    def __call__(self, view: View) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        others = view.task.unseen
        assert others is not None, "refused by check"
        assert others.test is not None, "refused by check"
        has_examples = jnp.asarray(others.test.sizes) > 0
        for ending, steps in (("", None), ("_adapted", self.steps)):
            values, name = view.unseen(self.score, steps), f"unseen_{self.score}{ending}"
            metrics |= {
                name: jnp.where(has_examples, values, 0).sum()
                / has_examples.sum(dtype=values.dtype),
                f"{name}_each": values,
            }
        return metrics

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        return score_modes(self, scores, f"unseen_{self.score}", f"unseen_{self.score}_adapted")

    def check(self, task: Task) -> None:
        if task.unseen is None:
            raise InvalidInput.of(
                "observe Unseen",
                f"task {task.name!r} without unseen clients",
                "tasks with such",
            )
        check_split_and_score(self, task, self.score, task.unseen.test)
