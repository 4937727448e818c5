"""Low-rank adapters (LoRA) for any task whose model has matrices by name."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fedax.core import InvalidInput, Task
from fedax.core.task import Given
from fedax.data.options import Count, Positive, validated
from fedax.models.storage import initial_model
from fedax.utils.leaf_names import OnBase, Which, chosen, names_of
from fedax.utils.random import stream

Matrices = dict[str, Any]
"""Factors by the names of the leaves that they change; None where the other part of the model has
them."""


class Adapted(eqx.Module, OnBase):
    """A model with low-rank adapters: W + scale * left @ right for some of its matrices W.

    Attributes:
        base: the model's own pytree.
        left: by name of the leaf, shape (rows, rank).
        right: shape (rank, columns).
        scale: alpha / rank.
    """

    base: PyTree
    left: Matrices
    right: Matrices
    scale: Any

    def merged(self) -> PyTree:
        """Returns the model's own pytree with the adapters added, as it is used without fedax.

        It has no state such as batch statistics: that is `History.model_state`. For modules of
        PyTorch, `History.state_dict` has both.
        """
        leaves, structure = jax.tree.flatten(self.base)
        return jax.tree.unflatten(structure, map(self._add_adapter, names_of(self.base), leaves))

    @property
    def whole_base(self) -> PyTree:
        # a model of the trained leaves has None for the others
        return jax.tree.map(lambda _: 0.0, self.base, is_leaf=lambda leaf: leaf is None)

    def select_with_base(self, selected: Sequence[bool]) -> list[bool]:
        base = self.whole_base
        names = {name for name, hit in zip(names_of(base), selected, strict=True) if hit}
        marks = Adapted(
            jax.tree.unflatten(jax.tree.structure(base), selected),
            {name: name in names for name in self.left},
            {name: name in names for name in self.right},
            False,
        )
        trained = jax.tree.map(
            lambda leaf, mark: None if leaf is None else mark,
            self,
            marks,
            is_leaf=lambda leaf: leaf is None,
        )
        return jax.tree.leaves(trained)

    def _add_adapter(self, name: str, leaf: Any) -> Any:
        if name not in self.left:
            return leaf
        left = self.left[name]
        right = self.right[name]
        return leaf + (self.scale.astype(left.dtype) * (left @ right)).astype(leaf.dtype)


@dataclasses.dataclass(frozen=True)
class OnMerged:
    """A per-example function of the user's model, as one of the model with adapters."""

    function: Callable[..., Any]

    @property
    def takes_state(self) -> bool:
        return bool(getattr(self.function, "takes_state", False))

    @property
    def separate(self) -> bool:
        return bool(getattr(self.function, "separate", False))

    def __call__(self, params: Adapted, *arguments: Any, **more: Any) -> Any:
        return self.function(params.merged(), *arguments, **more)


@validated
def lora(
    task: Task,
    rank: Count = 8,
    *,
    targets: Which,
    params: PyTree = None,
    alpha: Positive | None = None,
    average: Literal["exact", "factors"] = "exact",
    seed: int = 0,
) -> Task:
    r"""Returns the task of fine-tuning by low-rank adapters: the model is frozen, clients train and
    send adapters alone.

    A matrix W of the model becomes $W + \frac{\alpha}{r} A B$, where A acts on the layer's inputs
    and B begins at zero. The mean of products is not the product of means. So A is random and the
    same for all clients by default, and only B is trained (FFA-LoRA): the mean of B is then exactly
    the mean of the clients' models. B has half the numbers of both.

    `history.params` is the model with its adapters, and `history.params.merged()` the model in the
    task's own pytree. A training step computes the sum for every target, so it needs memory for the
    targets beside the base.

    Args:
        task: of any model; its own parameters are frozen.
        rank: $r$, from 1 to the smaller side of each target.
        targets: matrices by name, such as `["*.query.kernel", "*.value.kernel"]`, or a predicate of
            name and leaf. A name that ends in `weight` has outputs first, as PyTorch does; others
            have inputs first.
        params: the pretrained model, as `fedax.run(params=...)` takes it: a history, the path of a
            file, a `state_dict`, or the task's own pytree. The run starts from its state, such as
            batch statistics; a pytree without it gives a warning. By default the task's starting
            point for `seed`.
        alpha: above 0; r by default, for a factor of 1.
        average: `"exact"`, or `"factors"`: A and B are trained and averaged each for itself, which
            is not the mean of the clients' models.
        seed: of A, which is drawn apart from a base of the same seed.

    Example:
        >>> import fedax
        >>> import jax
        >>> import jax.numpy as jnp
        >>> def loss(p, e):
        ...     return ((e["x"] @ p["dense"]["kernel"] - e["y"]) ** 2).sum(1)
        >>> clients = [{"x": jnp.ones((2, 6)), "y": jnp.full((2, 4), float(k))} for k in range(3)]
        >>> task = fedax.Task({"dense": {"kernel": jnp.zeros((6, 4))}}, loss, clients)
        >>> history = fedax.run(
        ...     fedax.FedAvg(), fedax.lora(task, rank=2, targets="*.kernel"), rounds=2
        ... )
        >>> history.params.merged()["dense"]["kernel"].shape
        (6, 4)

    Raises:
        InvalidInput: an argument out of range, targets that are no matrices, parameters of another
            model, a task with l2, which would shrink the adapters instead of the model.

    Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, Eq. 3; exact
    averages: Sun et al., Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024, Sec.
    4.
    """
    if task.l2:
        raise InvalidInput.of(
            "lora(task=...), l2", task.l2, "0: l2 would shrink the adapters instead of the model"
        )
    if params is None:
        base = task.assembled(task.start(jax.random.key(seed)))
    else:
        base, pretrained = initial_model(_unfreeze(task), params, "lora")
        task = task.at(pretrained.state)
    is_target = chosen(base, targets, "lora(targets=...)")
    leaves = {
        name: leaf
        for name, leaf, included in zip(
            names_of(base), jax.tree.leaves(base), is_target, strict=True
        )
        if included
    }
    if not leaves:
        raise InvalidInput.of(
            "lora(targets=...)", targets, "at least one leaf of " + ", ".join(names_of(base))
        )
    # by a stream of their own: the base of the same seed is drawn from splits of its key, and the
    # factors would be scaled copies of its entries
    keys = jax.random.split(stream(jax.random.key(seed), "adapters"), len(leaves))
    left = Matrices()
    right = Matrices()
    trains_left = Matrices()
    trains_right = Matrices()
    for (name, leaf), key in zip(leaves.items(), keys, strict=True):
        if leaf.ndim != 2 or min(leaf.shape) < rank:
            got = f"{name!r} of shape {leaf.shape}"
            allowed = f"matrices with sides of at least the rank, {rank}"
            raise InvalidInput.found("lora(targets=...)", got, allowed)
        outputs_first = name.rpartition(".")[2] == "weight"
        left[name], right[name] = _initial_factors(leaf, rank, key, outputs_first)
        # the factor of the inputs is fixed unless both are trained
        trains_left[name] = outputs_first or average == "factors"
        trains_right[name] = not outputs_first or average == "factors"
    scale = jnp.asarray((rank if alpha is None else alpha) / rank, float)
    is_trained = Adapted(jax.tree.map(lambda _: False, base), trains_left, trains_right, False)
    # each part has None where the other has the leaf
    trained, frozen = eqx.partition(Adapted(base, left, right, scale), is_trained)
    return dataclasses.replace(
        task,
        start=Given(trained),
        loss=OnMerged(task.loss),
        scores={name: OnMerged(score) for name, score in task.scores.items()},
        predictor=None if task.predictor is None else OnMerged(task.predictor),
        frozen=frozen,
        name=f"{task.name}, LoRA",
    )


def _unfreeze(task: Task) -> Task:
    """Returns the task without frozen leaves, so that a pretrained model gives those as well."""
    if task.frozen is None:
        return task
    # `dataclasses.replace` would check that the frozen leaves can be trained
    return eqx.tree_at(
        lambda task: (task.start, task.frozen),
        task,
        (lambda key: task.assembled(task.start(key)), None),
        is_leaf=lambda leaf: leaf is None,
    )


def _initial_factors(leaf: Array, rank: int, key: Any, outputs_first: bool) -> tuple[Array, Array]:
    """Returns a product of zero, (rows, rank) and (rank, columns): the factor on the side of the
    inputs is drawn, the other is zero.
    """
    rows, columns = leaf.shape
    inputs = columns if outputs_first else rows
    shape = (rank, columns) if outputs_first else (rows, rank)
    bound = 1 / math.sqrt(inputs)
    drawn = jax.random.uniform(key, shape, leaf.dtype, -bound, bound)
    if outputs_first:
        return jnp.zeros((rows, rank), leaf.dtype), drawn
    return drawn, jnp.zeros((rank, columns), leaf.dtype)
