"""Fairness: the global model on the data of the single clients."""

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Task
from fedax.core.directions import Mode, find_mode, mode_field
from fedax.observe.accuracy import check_split_and_score, score_mode, score_modes
from fedax.observe.base import Observer, View


class ClientAccuracy(Observer):
    """A score of the global model, or of the clients' models, on each client's test examples.

    Gives `client_<score>` (one per client, NaN for a client without test examples) and, over the
    clients that have some, `..._mean`, `..._variance`, `..._pooled` (every test example counts
    alike), `..._worst_tenth` (mean of the worst tenth, rounded up to whole clients: the lowest
    accuracies, the highest losses), `..._smallest` and `..._largest`. Those two are the scores of
    the client with the fewest and of the client with the most training examples (the first of
    several), not the lowest and the highest score. With `personal` the names begin with `local_`.
    Where the score of a client with test examples is not finite, the numbers made of it are not
    finite either.

    Args:
        score: a score of the task.
        personal: whether each client uses its own model, for methods that have such (see
            `Algorithm.personal`).
        mode: `"max"` where more of the score is better, `"min"` where less is; needed for a score
            of which the task does not say it, because the worst tenth depends on it.
    """

    score: str = eqx.field(static=True, default="accuracy")
    personal: bool = eqx.field(static=True, default=False)
    mode: Mode | None = mode_field()

    def __call__(self, view: View) -> dict[str, Any]:
        # shape (clients,), NaN for a client without test examples
        values = (view.personal if self.personal else view.per_client)("test", self.score)
        is_measured, mode = view.measured("test"), score_mode(self, view.task.score_modes)
        count = is_measured.sum(dtype=values.dtype)

        def total(entries: Float[Array, "clients"]) -> Float[Array, ""]:
            return jnp.where(is_measured, entries, 0).sum()

        mean = total(values) / count
        # the worst come first; sorting puts NaN last, as if it were best, which is mended below
        sign = -1 if mode == "min" else 1
        ranked = sign * jnp.sort(jnp.where(is_measured, sign * values, jnp.inf))
        # marks of the first tenth in the order of scores; at least one client
        in_worst_tenth = jnp.arange(ranked.shape[0], dtype=values.dtype) < jnp.ceil(count / 10)
        # training and test examples by client, as numbers of the scores' type
        sizes, tests = (
            jnp.asarray(split.sizes).astype(values.dtype)
            for split in (view.task.train, view.task.test)
            if split is not None
        )
        worst = jnp.where(in_worst_tenth, ranked, 0).sum() / in_worst_tenth.sum(dtype=values.dtype)
        # NaN of clients without test examples does not count
        has_nan = jnp.isnan(jnp.where(is_measured, values, 0)).any()
        name = self._name
        return {
            name: values,
            f"{name}_mean": mean,
            f"{name}_variance": total((values - mean) ** 2) / count,
            f"{name}_pooled": total(tests * values) / total(tests),
            f"{name}_worst_tenth": jnp.where(has_nan, jnp.nan, worst),
            f"{name}_smallest": values[jnp.argmin(jnp.where(is_measured, sizes, math.inf))],
            f"{name}_largest": values[jnp.argmax(jnp.where(is_measured, sizes, -1))],
        }

    @property
    def _name(self) -> str:
        return f"{'local' if self.personal else 'client'}_{self.score}"

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        endings = "mean", "pooled", "worst_tenth", "smallest", "largest"
        variance: dict[str, Mode] = {f"{self._name}_variance": "min"}
        return variance | score_modes(
            self, scores, *(f"{self._name}_{ending}" for ending in endings)
        )

    def check(self, task: Task) -> None:
        check_split_and_score(self, task, self.score, task.test)
        hint = (
            f'Say ClientAccuracy("{self.score}", mode="max") or mode="min", by which the '
            "worst tenth is known."
        )
        find_mode("observe ClientAccuracy", self.score, self.mode, task.score_modes, hint, "tasks")


def LocalAccuracy() -> ClientAccuracy:
    """Observes `local_accuracy`: each client's own model on its own test examples.

    With the statistics of `ClientAccuracy`.
    """
    return ClientAccuracy(personal=True)
