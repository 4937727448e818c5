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
        hint = ""
        if array.ndim == 2:
            hint = (
                "Write labels[:, 0]."
                if array.shape[1] == 1
                else "Write labels.argmax(axis=1) for one-hot rows."
            )
        raise DataError.of(
            field, f"shape {array.shape}", "one label per example, shape (examples,)", hint
        )
    if (
        array.dtype.kind == "f"
        and np.array_equal(array, np.floor(array))
        and np.isfinite(array).all()
    ):
        return array.astype(np.int64)
    texts = array.dtype.kind == "O" and all(isinstance(value, str) for value in array.tolist())
    if array.dtype.kind not in "iubUS" and not texts:
        raise DataError.of(
            field, f"labels of type {array.dtype}", "whole numbers, or names of classes"
        )
    return array.astype(str) if texts else array


def check_enough(owner: str, examples: int, needed: int, why: str = "") -> None:
    """Refuses at once what cannot be dealt without empty shares."""
    if needed > examples:
        got = why or f"{needed} clients"
        raise DataError.of(
            f"{owner}(clients=...)", got, f"at most as many as there are examples, {examples}"
        )
