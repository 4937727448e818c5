"""Leaves of a model by name."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import equinox as eqx
import jax
from jax.tree_util import DictKey, SequenceKey, keystr
from jaxtyping import PyTree

from fedax.errors import InvalidInput

Which: TypeAlias = str | Sequence[str] | Callable[[str, Any], bool]
"""Leaves of a model: a name or several, with `*` for any text, a predicate of a leaf's name and its
array, or a word, `"last"` or `"norms"`; see `chosen`.
"""


class OnBase(ABC):
    """A model whose leaves change those of a base model, as low-rank adapters do."""

    @property
    @abstractmethod
    def whole_base(self) -> PyTree:
        """The base model with a number for every leaf, also where it is not trained."""

    @abstractmethod
    def select_with_base(self, selected: Sequence[bool]) -> list[bool]:
        """Returns for each leaf of this model whether it goes with selected leaves of the base."""


def names_of(tree: PyTree) -> list[str]:
    """Returns the names of all leaves in flat order.

    The keys, numbers and fields that lead to each, with dots between.

    >>> names_of({"head": {"bias": 0.0, "kernel": 1.0}, "layers": [2.0, 3.0]})
    ['head.bias', 'head.kernel', 'layers.0', 'layers.1']
    """
    return [keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(tree)]


def chosen(tree: PyTree, which: Which, field: str) -> list[bool]:
    """Returns for each leaf, in flat order, whether it is selected.

    By its whole name, or by a part of it between dots, or by a word:

    `"last"` is the last layer of models whose layers are in order (tuples, named tuples,
    dataclasses), also where they end in a sequence of layers; of a model of one layer, such as two
    arrays in a dict, the last array, and a lone array itself. Of low-rank adapters it is those of
    the base model's last layer. `"norms"` are leaves with a part of their name that contains "norm"
    or begins with "bn", in any case; a model may have none, and norms of other names are not found
    (`overlooked_norms`).

    >>> chosen({"head": {"bias": 0.0, "kernel": 1.0}, "headless": 2.0}, "head", "personal")
    [True, True, False]
    >>> chosen(({"kernel": 0.0}, {"bias": 0.0, "kernel": 0.0}), "last", "head")
    [False, True, True]
    >>> chosen(("convolution", ({"kernel": 0.0}, {"bias": 0.0, "kernel": 0.0})), "last", "head")
    [False, False, True, True]
    >>> chosen({"BatchNorm_0": {"scale": 0.0}, "Dense_0": {"kernel": 0.0}}, "norms", "norms")
    [True, False]

    Args:
        tree: the model.
        which: see `Which`.
        field: for messages.

    Raises:
        InvalidInput: a name that no leaf has; the last of layers that a dict holds, which are in no
            order, or a last layer that is not trained.
    """
    names = names_of(tree)
    if callable(which):
        return [bool(hit) for hit in map(which, names, jax.tree.leaves(tree))]
    if which == "norms":
        return list(map(_is_norm, names))
    allowed = "the names of leaves, or parts of them: " + ", ".join(names)
    if which == "last":
        selected = _select_last(tree)
        if not any(selected):
            raise InvalidInput.found(
                field, "'last' of layers that are in no order, or not trained", allowed
            )
        return selected
    selected = [False] * len(names)
    for pattern in [which] if isinstance(which, str) else which:
        hits = [fnmatchcase(f".{name}.", f"*.{pattern}.*") for name in names]
        if not any(hits):
            raise InvalidInput.of(field, pattern, allowed)
        selected = list(map(max, selected, hits))
    return selected


def overlooked_norms(state_names: Sequence[str]) -> list[str]:
    """Returns the running means of a model's state that are in layers which the word "norms" does
    not mean.

    A norm without statistics looks like any other layer.

    >>> overlooked_norms(["bn1.running_mean", "down.1.running_mean"])
    ['down.1.running_mean']
    """
    return [name for name in state_names if "mean" in name.lower() and not _is_norm(name)]


def _is_norm(name: str) -> bool:
    """Returns whether a part of a leaf's name says that its layer is a norm."""
    return re.search(r"norm|(^|\.)bn", name.lower()) is not None


def _select_last(tree: PyTree) -> list[bool]:
    """Returns which leaves the last layer has; none where layers are in no order."""
    if isinstance(tree, OnBase):
        return tree.select_with_base(_select_last(tree.whole_base))
    paths = [path for path, _ in jax.tree.leaves_with_path(tree)]
    depth = 0
    while len(paths) > 1 and len({path[: depth + 1] for path in paths}) == 1:
        depth += 1
    # layers by name, which JAX sorts, if there are more than the two arrays of one layer
    is_by_name = isinstance(next(iter(paths[-1][depth:]), None), DictKey)
    if is_by_name and (len(paths) > 2 or any(len(path) > depth + 1 for path in paths)):
        return [False] * len(paths)
    # a sequence of layers, such as the fully connected ones of a CNN, goes on to its last layer
    while all(
        path[: depth + 1] != paths[-1][: depth + 1] or len(path) > depth + 2 for path in paths
    ) and isinstance(paths[-1][depth + 1], SequenceKey):
        depth += 1
    return [path[: depth + 1] == paths[-1][: depth + 1] for path in paths]


def is_in_module(tree: PyTree) -> list[bool]:
    """Returns for each leaf, in flat order, whether it lies within an Equinox module.

    >>> is_in_module({"dropout": eqx.nn.Dropout(0.5), "scale": 1.0})
    [True, True, False]
    """
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, eqx.Module))
    return [isinstance(node, eqx.Module) for node in nodes for _ in jax.tree.leaves(node)]
