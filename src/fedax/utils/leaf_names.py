"""Leaves of a model by name."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import equinox as eqx
import jax
from jaxtyping import PyTree

from fedax.errors import InvalidInput

Which: TypeAlias = str | Sequence[str] | Callable[[str, Any], bool]
"""Leaves of a model: a name or several, with `*` for any text, or a predicate of a leaf's name and
its array.
"""
WORDS = ("last", "norms")
"""Leaves that a method can ask for without a name, see `select_by_word`."""


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
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]


def chosen(tree: PyTree, which: Which, field: str) -> list[bool]:
    """Returns for each leaf, in flat order, whether it is selected.

    By its whole name, or by a part of it between dots.

    >>> chosen({"head": {"bias": 0.0, "kernel": 1.0}, "headless": 2.0}, "head", "personal")
    [True, True, False]

    Args:
        tree: the model.
        which: see `Which`.
        field: for messages.

    Raises:
        InvalidInput: a name that no leaf has.
    """
    names, leaves = names_of(tree), jax.tree.leaves(tree)
    if callable(which):
        return [bool(which(name, leaf)) for name, leaf in zip(names, leaves, strict=True)]
    selected = [False] * len(names)
    for pattern in [which] if isinstance(which, str) else which:
        hits = [_matches(name, pattern) for name in names]
        if not any(hits):
            raise InvalidInput.of(
                field, pattern, "the names of leaves, or parts of them: " + ", ".join(names)
            )
        selected = [old or new for old, new in zip(selected, hits, strict=True)]
    return selected


def select_by_word(tree: PyTree, word: str, field: str) -> list[bool]:
    """Returns for each leaf, in flat order, whether a word means it.

    `"last"` is the last layer of models whose layers are in order (tuples, named tuples,
    dataclasses); of a model of one layer, such as two arrays in a dict, the last array, and a lone
    array itself. Of low-rank adapters it is those of the base model's last layer. `"norms"` are
    leaves with a part of their name that contains "norm" or begins with "bn", in any case; a model
    may have none, and norms of other names are not found (`overlooked_norms`).

    >>> select_by_word(({"kernel": 0.0}, {"bias": 0.0, "kernel": 0.0}), "last", "head")
    [False, True, True]
    >>> select_by_word(
    ...     {"BatchNorm_0": {"scale": 0.0}, "Dense_0": {"kernel": 0.0}}, "norms", "norms"
    ... )
    [True, False]

    Args:
        tree: the model.
        word: one of `WORDS`.
        field: for messages.

    Raises:
        InvalidInput: the last of layers that a dict holds, which are in no order, or a last layer
            without adapters.
    """
    if word == "norms":
        return [any(map(_is_norm, name.split("."))) for name in names_of(tree)]
    allowed = "the names of leaves, or parts of them: " + ", ".join(names_of(tree))
    selected = _select_last(tree)
    if selected is None:
        got = f"{word!r} of layers that a dict holds, which are in no order"
        raise InvalidInput.found(field, got, allowed)
    if not any(selected):
        raise InvalidInput.found(field, f"{word!r}, a layer that is not trained", allowed)
    return selected


def overlooked_norms(names: Sequence[str], state_names: Sequence[str]) -> list[str]:
    """Returns the leaves of norms that the word "norms" does not mean.

    A layer is a norm if its state has a running mean, such as `down.1.running_mean`, and it is
    overlooked if the word means none of its leaves. A norm without statistics looks like any other
    layer.

    >>> overlooked_norms(
    ...     ["bn1.weight", "down.0.weight", "down.1.weight"],
    ...     ["bn1.running_mean", "down.1.running_mean"],
    ... )
    ['down.1.weight']

    Args:
        names: of the model's leaves.
        state_names: of the leaves of its state.
    """
    found = {_layer_of(name) for name in names if any(map(_is_norm, name.split(".")))}
    norms = set(map(_layer_with_mean, state_names)) - {(), *found}
    return [name for name in names if _layer_of(name) in norms]


def _is_norm(segment: str) -> bool:
    """Returns whether a part of a name says that its layer is a norm."""
    return "norm" in segment.lower() or segment.lower().startswith("bn")


def _split(name: str) -> list[str]:
    # Haiku joins the names of modules by "/~/"
    return [segment for segment in re.split("[./]", name) if segment != "~"]


def _layer_of(name: str) -> tuple[str, ...]:
    # leaves of Flax NNX end in "value"
    return tuple(_split(name.removesuffix(".value"))[:-1])


def _layer_with_mean(name: str) -> tuple[str, ...]:
    """Returns the layer of a leaf of the state that is a running mean; () for other leaves."""
    # Flax Linen has statistics in a collection beside the one of parameters
    segments = _split(name.removeprefix("batch_stats."))
    ends = [i for i, segment in enumerate(segments) if "mean" in segment.lower()]
    return tuple(segments[: ends[-1]]) if ends else ()


def _select_last(tree: PyTree) -> list[bool] | None:
    """Returns which leaves the last layer has, None where layers are in no order."""
    if isinstance(tree, OnBase):
        base = tree.whole_base
        selected = _select_last(base)
        return None if selected is None else tree.select_with_base(selected)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    depth = 0
    while len(paths) > 1 and len({path[: depth + 1] for path in paths}) == 1:
        depth += 1
    if _is_unordered([path[depth:] for path in paths]):
        return None
    return [path[: depth + 1] == paths[-1][: depth + 1] for path in paths]


def _is_unordered(paths: Sequence[Sequence[Any]]) -> bool:
    """Returns whether these are layers by name, which JAX sorts.

    They are if there are more than the two arrays of one layer.
    """
    by_name = isinstance(paths[-1][0] if paths[-1] else None, jax.tree_util.DictKey)
    return by_name and (len(paths) > 2 or any(len(path) > 1 for path in paths))


def _matches(name: str, pattern: str) -> bool:
    return any(fnmatchcase(f".{name}.", form) for form in (f"*.{pattern}.*", f".{pattern}."))


def is_in_module(tree: PyTree) -> list[bool]:
    """Returns for each leaf, in flat order, whether it lies within an Equinox module.

    >>> is_in_module({"dropout": eqx.nn.Dropout(0.5), "scale": 1.0})
    [True, True, False]
    """
    marks = list[bool]()
    for node in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, eqx.Module)):
        is_module = isinstance(node, eqx.Module)
        marks += [is_module] * (len(jax.tree.leaves(node)) if is_module else 1)
    return marks
