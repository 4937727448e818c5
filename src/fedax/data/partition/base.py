"""The common part of all partitions."""

from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int

from fedax.core import DataError
from fedax.examples.arrays import as_ndarray

Partition: TypeAlias = list[Int[np.ndarray, "_"]]
"""For each client the indices of its examples."""


def labels_of(owner: str, labels: Any) -> np.ndarray:
    """Returns the labels of pooled examples as an array, one for each.

    Raises:
        DataError: labels of another shape, such as one-hot rows or a column; numbers that are not
            whole, or missing ones.

    >>> labels_of("dirichlet", [0, 1, 1]).tolist()
    [0, 1, 1]
    """
    field = f"{owner}(labels=...)"
    array = as_ndarray(labels, field)
    if array.ndim != 1:
        hint = "Write labels.argmax(axis=1) for one-hot rows." if array.ndim == 2 else ""
        allowed = "one label per example, shape (examples,)"
        raise DataError.of(field, f"shape {array.shape}", allowed, hint)
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.rint(array)).all():
        return array.astype(np.int64)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.tolist()):
        return array.astype(str)
    if array.dtype.kind not in "iubUS":
        allowed = "whole numbers, or names of classes"
        raise DataError.of(field, f"labels of type {array.dtype}", allowed)
    return array


def check_enough(owner: str, examples: int, needed: int) -> None:
    """Refuses to deal fewer examples than clients need."""
    if needed > examples:
        allowed = f"at most as many as there are, {examples}"
        raise DataError.of(f"{owner}(clients=...)", f"{needed} examples needed", allowed)
