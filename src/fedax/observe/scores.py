"""Losses and scores: of the global model on a split, of single clients, of nodes and cohorts."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedax.core import InvalidInput, Task, UnknownName
from fedax.core.directions import Mode, find_mode
from fedax.core.hyper import hyper
from fedax.observe.base import Observer, Split, View


class TrainLoss(Observer):
    r"""`train_loss`: the mean over all clients' training examples, without l2.

    $\sum_k \frac{n_k}{n} f_k(w)$.

    Every example counts alike, also if the objective counts clients alike, so that it compares
    methods; see `Objective` for what a run minimises.
    """

    lower_is_better = ("train_loss",)

    def __call__(self, view: View) -> dict[str, Array]:
        return {"train_loss": view.overall("train", "loss")}


class Objective(Observer):
    r"""`objective`, which is minimised: the mean of the clients' losses, with l2.

    $\sum_k p_k f_k(w) + \frac{\text{l2}}{2} \lVert w \rVert^2$.

    The shares are $p_k = n_k/n$, so that all training examples count alike, or $p_k = 1/N$ with a
    schedule of `weights="equal"` and for methods without a server, whose clients all count alike.

    With the known minimum also `objective_gap`, how far it is above it; in single precision down to
    about 1e-7 of the minimum.

    Args:
        minimum: of the objective, if it is known.
    """

    minimum: float | None = hyper(None)

    lower_is_better = ("objective", "objective_gap")

    def __call__(self, view: View) -> dict[str, Array]:
        value = view.objective() + view.task.l2 / 2 * jnp.sum(view.w**2)
        if self.minimum is None:
            return {"objective": value}
        return {"objective": value, "objective_gap": value - self.minimum}


class ScoreObserver(Observer):
    """Base of observers of a score of the task on one split.

    Its metrics are `<prefix>_<score>` with `endings` after it. They have the score's direction,
    those with `lower_endings` are better the lower they are.
    """

    score: str = eqx.field(static=True, default="accuracy")
    _: dataclasses.KW_ONLY
    mode: Mode | None = hyper(None, choices=(None, "min", "max"))

    split: ClassVar[Split] = "test"
    prefix: ClassVar[str]
    endings: ClassVar[tuple[str, ...]] = ("",)
    lower_endings: ClassVar[tuple[str, ...]] = ()
    needs_mode: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"{self.prefix}_{self.score}"

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        modes: dict[str, Mode] = {**super().modes(scores)}
        for ending in self.lower_endings:
            modes[self.name + ending] = "min"
        mode: Any = scores.get(self.score, self.mode)
        if mode is not None:
            for ending in self.endings:
                modes[self.name + ending] = mode
        return modes

    def check(self, task: Task) -> None:
        field = f"observe {self.name}"
        check_split(field, task, self.split)
        if self.score not in ("loss", *task.scores):
            raise UnknownName.among(field, self.score, ["loss", *task.scores])
        if self.needs_mode or self.mode is not None:
            hint = 'Say mode="max" or mode="min", by which the worst tenth is known.'
            find_mode(field, self.score, self.mode, task.score_modes, hint)


def check_split(field: str, task: Task, split: Split) -> Mapping[str, Any]:
    """Returns the examples of a split, those of all clients together; refuses a task without.

    Raises:
        InvalidInput: names `field`.
    """
    examples = task.test_set if split == "central" else None
    if split != "central":
        data = getattr(task, split)
        examples = data.arrays if data is not None and data.total else None
    if examples is None:
        owned = "test" if split == "central" else split
        hint = f"Make the task with {owned}=[...], the examples of each client."
        got = f"task {task.name!r} without {owned} examples"
        raise InvalidInput.found(field, got, f"tasks with {owned} examples", hint)
    return examples


class _MeanScore(ScoreObserver):
    def __call__(self, view: View) -> dict[str, Array]:
        return {self.name: view.overall(self.split, self.score)}


class TrainScore(_MeanScore):
    """`train_<score>`: the mean of a per-example score over all clients' training examples.

    Args:
        score: a score of the task such as `"accuracy"`.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.
    """

    split = "train"
    prefix = "train"


class CentralScore(_MeanScore):
    """`test_<score>`: the mean of a per-example score over the central test set.

    By default all clients' test examples.

    Args:
        score: `"loss"`, or a score of the task such as `"accuracy"`.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.
    """

    split = "central"
    prefix = "test"


class ValidationScore(_MeanScore):
    """`validation_<score>`: the mean of a per-example score over all clients' validation examples.

    Args:
        score: `"loss"`, or a score of the task such as `"accuracy"`.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.
    """

    split = "validation"
    prefix = "validation"


def TestAccuracy() -> CentralScore:
    """Observes `test_accuracy`, the accuracy on the central test set, in [0, 1]."""
    return CentralScore("accuracy")


def ValidationAccuracy() -> ValidationScore:
    """Observes `validation_accuracy`, on the clients' validation examples, in [0, 1]."""
    return ValidationScore("accuracy")


def ValidationLoss() -> ValidationScore:
    """Observes `validation_loss`, the global model's mean loss on the clients' validation examples.

    Of the models that clients use themselves it is `local_validation_loss_pooled`, by
    `ClientAccuracy("loss", personal=True, split="validation")`.
    """
    return ValidationScore("loss")


def TestLoss() -> CentralScore:
    """Observes `test_loss`, the mean loss on the central test set."""
    return CentralScore("loss")


class NodeAccuracy(ScoreObserver):
    """`node_<score>_mean`, `_min` and `_max`: each client's model on the central test set.

    A score of the task, over the clients.

    With a server all three are the score of the global model.

    Args:
        score: a score of the task.
        mode: `"max"` where more of the score is better, `"min"` where less is, for a score of which
            the task does not say it.
    """

    split = "central"
    prefix = "node"
    endings = ("_mean", "_min", "_max")

    def __call__(self, view: View) -> dict[str, Array]:
        values = view.per_node(self.score)
        return {
            f"{self.name}_mean": values.mean(),
            f"{self.name}_min": values.min(),
            f"{self.name}_max": values.max(),
        }


class Unseen(ScoreObserver):
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

    steps: int = hyper(5, low=1)

    prefix = "unseen"
    endings = ("", "_adapted")

    def __call__(self, view: View) -> dict[str, Array]:
        metrics = {}
        others = view.task.unseen
        assert others is not None, "refused by check"
        assert others.test is not None, "refused by check"
        has_examples = jnp.asarray(others.test.sizes) > 0
        for ending, steps in zip(self.endings, (None, self.steps)):
            values = view.unseen(self.score, steps)
            count = has_examples.sum(dtype=values.dtype)
            metrics[self.name + ending] = jnp.where(has_examples, values, 0).sum() / count
            metrics[f"{self.name}{ending}_each"] = values
        return metrics

    def check(self, task: Task) -> None:
        if task.unseen is None:
            got = f"task {task.name!r} without unseen clients"
            raise InvalidInput.found(f"observe {self.name}", got, "tasks with such")
        super().check(task.unseen)


class ClientAccuracy(ScoreObserver):
    """A score of the global model, or of the clients' models, on each client's own examples.

    Gives `client_<score>` (one per client, NaN for a client without test examples) and, over the
    clients that have some, `..._mean`, `..._variance`, `..._pooled` (every test example counts
    alike), `..._worst_tenth` (mean of the worst tenth, rounded up to whole clients: the lowest
    accuracies, the highest losses), `..._smallest` and `..._largest`. Those two are the scores of
    the client with the fewest and of the client with the most training examples (the first of
    several), not the lowest and the highest score. With `personal` the names begin with `local_`,
    of validation examples with `client_validation_` or `local_validation_`.
    Where the score of a client with test examples is not finite, the numbers made of it are not
    finite either.

    Args:
        score: a score of the task.
        personal: whether each client uses its own model, for methods that have such (see
            `Algorithm.personal`).
        split: `"test"` or `"validation"`.
        mode: `"max"` where more of the score is better, `"min"` where less is; needed for a score
            of which the task does not say it, because the worst tenth depends on it.
    """

    personal: bool = hyper(False)
    _: dataclasses.KW_ONLY
    split: Any = hyper("test", choices=("test", "validation"))

    endings = "_mean", "_pooled", "_worst_tenth", "_smallest", "_largest"
    lower_endings = ("_variance",)
    needs_mode = True

    @property
    def prefix(self) -> str:  # type: ignore[override]
        owner = "local" if self.personal else "client"
        return owner if self.split == "test" else f"{owner}_{self.split}"

    def __call__(self, view: View) -> dict[str, Array]:
        # shape (clients,), NaN for a client without examples of the split
        values = (view.personal if self.personal else view.per_client)(self.split, self.score)
        is_measured = view.measured(self.split)
        count = is_measured.sum(dtype=values.dtype)

        def total(entries: Float[Array, "clients"]) -> Float[Array, ""]:
            return jnp.where(is_measured, entries, 0).sum()

        mean = total(values) / count
        # the worst come first; sorting puts NaN last, as if it were best, which is mended below
        sign = -1 if view.task.score_modes.get(self.score, self.mode) == "min" else 1
        ranked = sign * jnp.sort(jnp.where(is_measured, sign * values, jnp.inf))
        # marks of the first tenth in the order of scores; at least one client
        in_worst_tenth = jnp.arange(ranked.shape[0], dtype=values.dtype) < jnp.ceil(count / 10)
        worst = jnp.where(in_worst_tenth, ranked, 0).sum() / in_worst_tenth.sum(dtype=values.dtype)
        sizes = view.sizes
        counts = jnp.asarray(getattr(view.task, self.split).sizes).astype(values.dtype)
        return {
            self.name: values,
            f"{self.name}_mean": mean,
            f"{self.name}_variance": total((values - mean) ** 2) / count,
            f"{self.name}_pooled": total(counts * values) / total(counts),
            f"{self.name}_worst_tenth": jnp.where(jnp.isnan(mean), jnp.nan, worst),
            f"{self.name}_smallest": values[jnp.argmin(jnp.where(is_measured, sizes, math.inf))],
            f"{self.name}_largest": values[jnp.argmax(jnp.where(is_measured, sizes, -1))],
        }


def LocalAccuracy() -> ClientAccuracy:
    """Observes `local_accuracy`: each client's own model on its own test examples.

    With the statistics of `ClientAccuracy`.
    """
    return ClientAccuracy(personal=True)


class Extremes(ScoreObserver):
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

    prefix = "drawn"
    endings = ("_smallest", "_largest")
    lower_is_better = ("weight_gap",)
    lower_endings = ("_gap",)

    def __call__(self, view: View) -> dict[str, Array]:
        # shape (capacity,), with padding from `count` on
        cohort = view.cohort()
        is_valid = cohort.works
        sizes = view.sizes
        cohort_sizes = sizes[cohort.ids]
        # padding gets a number that no client has, so that it is dropped
        owners = jnp.where(is_valid, cohort.ids, len(sizes))
        # a draw with replacement may have a client in several slots, of which the first counts
        slots = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32)
        first_slots = jnp.full(len(sizes), len(slots), jnp.int32)
        first_slots = first_slots.at[owners].min(slots, mode="drop")
        is_first = is_valid & (first_slots[cohort.ids] == slots)
        # padding must never win: infinite for the smallest, -1 for the largest
        smallest = jnp.argmin(jnp.where(is_valid, cohort_sizes, jnp.inf))
        largest = jnp.argmax(jnp.where(is_valid, cohort_sizes, -1))

        def pair(name: str, values: Float[Array, "capacity"]) -> dict[str, Array]:
            low = jnp.where(cohort.count > 0, values[smallest], jnp.nan)
            high = jnp.where(cohort.count > 0, values[largest], jnp.nan)
            gap = jnp.abs(high - low)
            return {f"{name}_smallest": low, f"{name}_largest": high, f"{name}_gap": gap}

        weight = jnp.where(is_valid, cohort.weights, 0)
        if view.weights is not None:
            own_weight = jnp.where(is_valid, view.weights[cohort.ids], 0)
            weight = jnp.where(own_weight.sum() > 0, own_weight, weight)
        weight = normalized(weight)
        # by slot, the weight of all draws of its client
        weight = jnp.zeros_like(sizes, weight.dtype).at[owners].add(weight, mode="drop")[cohort.ids]
        share = normalized(jnp.where(is_first, cohort_sizes, 0))
        scores = view.per_client("test", self.score)[cohort.ids]
        return pair("weight", weight) | pair("share", share) | pair(self.name, scores)


def normalized(weights: Float[Array, "rows"]) -> Float[Array, "rows"]:
    """Returns weights divided by their sum; all 0 if they are."""
    return weights / jnp.where(weights.sum() > 0, weights.sum(), 1)


class ClientWeights(Observer):
    r"""The shares of the clients in a mean over all of them.

    As if all took part in the next round.

    - `client_weight`, shape (clients,): $w_k / \sum_j w_j$ with the method's own weights where it
      remembers them (FedBC: its multipliers), else, and where those are all zero, with the
      objective's (see `Objective`).
    - `client_share`, shape (clients,): $n_k / \sum_j n_j$, of the training examples.
    - `client_weight_smallest`, `client_weight_largest`: the weights of the clients with the fewest
      and the most training examples (the first of several), not the lowest and highest weight.
    - `weight_raised`: of the clients with fewer examples than the mean, the part whose weight is
      above their share.
    - `weight_lowered`: of those with more examples than the mean, the part whose weight is below
      it. (0 where there are none.)

    Source: Bedi et al., FedBC (arXiv:2206.10815), Fig. 3 (c) and 7 (e).
    """

    def __call__(self, view: View) -> dict[str, Array]:
        sizes = view.sizes
        share = normalized(sizes)
        # the same array, so that no weight differs from its share by rounding
        weight = view.share if view.equal else share
        if view.weights is not None:
            weight = jnp.where(view.weights.sum() > 0, normalized(view.weights), weight)

        # share of a group with a change; 0 for an empty group, not NaN
        def share_changed(
            group: Bool[Array, "clients"], changed: Bool[Array, "clients"]
        ) -> Float[Array, ""]:
            count = group.sum(dtype=sizes.dtype)
            return (group & changed).sum(dtype=sizes.dtype) / jnp.where(count > 0, count, 1)

        return {
            "client_weight": weight,
            "client_share": share,
            "client_weight_smallest": weight[jnp.argmin(sizes)],
            "client_weight_largest": weight[jnp.argmax(sizes)],
            "weight_raised": share_changed(sizes < sizes.mean(), weight > share),
            "weight_lowered": share_changed(sizes > sizes.mean(), weight < share),
        }
