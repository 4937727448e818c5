"""Clients' data in the forms that users have them: tables and their columns."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedax.errors import DataError
from fedax.examples.arrays import as_array
from fedax.examples.integer_ranges import LABELS_HINT
from fedax.examples.ragged import Ragged

FILL = "Fill the cell, or leave the row out."
"""What to do about a missing value in a table."""
REGRESSION = "fedax.tasks.from_loss takes real ones, for regression."


def make_empty(client: Any) -> Any:
    """Returns no rows, in the form of a client's."""
    if isinstance(client, Mapping):
        return {
            name: as_array(values, f"clients[...][{name!r}]")[:0] for name, values in client.items()
        }
    return as_array(client, "clients[...]")[:0]


def count_classes(labels: Sequence[np.ndarray], texts: Sequence[str], where: str) -> int:
    """Returns the number of classes: of their texts, or else one more than the largest label.

    Args:
        labels: of all parts of the data.
        texts: of the classes, if they have some.
        where: names the number of classes in the message.

    Raises:
        DataError: labels without texts that do not begin at 0, or that look like ids.
    """
    values = [array for array in labels if array.dtype.kind in "iu" and array.size]
    low, high = min(map(np.min, values), default=0), max(map(np.max, values), default=0)
    if not texts and (low > 0 or high > 9_999):
        got, allowed = f"labels {low} to {high}", "that number, or labels from 0 to at most 9999"
        raise DataError.found(where, got, allowed, LABELS_HINT)
    return max(int(high) + 1, len(texts), 1)


class Frames:
    """Common order of the columns of all clients' data frames: that of the first frame of a name.

    Arrays have no names of columns and pass.
    """

    def __init__(self) -> None:
        self._columns = dict[str, list[Any]]()

    def client(self, arrays: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Returns the arrays of a client with all columns in order.

        Raises:
            DataError: other columns than those of the first frame, one twice, or rows of two arrays
                in different orders.
        """
        labelled = [
            name
            for name, values in arrays.items()
            # frames and series of pandas, whose labels must not be lost
            if type(values) is not np.ndarray and _has_labels(values)
        ]
        if not labelled:
            return arrays
        rows = [(name, list(arrays[name].index)) for name in labelled]
        # the same labels in another order are a mistake; other labels mean nothing here
        for name, labels in rows[1:]:
            if (
                labels != rows[0][1]
                and len(labels) == len(rows[0][1])
                and set(labels) == set(rows[0][1])
            ):
                got = f"the rows of {rows[0][0]!r} in another order, by their labels"
                hint = (
                    "Bring them into one order by .loc, or write .to_numpy() if the labels "
                    "mean nothing."
                )
                raise DataError.found(
                    f"{where}[{name!r}]", got, "rows in the same order in all arrays", hint
                )
        return {
            **arrays,
            **{name: self.array(arrays[name], f"{where}[{name!r}]", name) for name in labelled},
        }

    def array(self, values: Any, where: str, name: str = "x") -> Any:
        """Returns the values with their columns in order; see `client`."""
        if type(values) is np.ndarray or not _has_labels(values) or not hasattr(values, "columns"):
            return values
        labels = list(values.columns)
        if len(set(labels)) < len(labels):
            twice = next(column for i, column in enumerate(labels) if column in labels[:i])
            raise DataError.found(
                where, f"the column {twice!r} twice", "columns of different names"
            )
        columns = self._columns.setdefault(name, labels)
        if labels == columns:
            return values.to_numpy()
        if set(labels) != set(columns):
            raise DataError.of(where, labels, f"the columns {columns}, as the first frame has")
        return values[columns].to_numpy()


def _has_labels(values: Any) -> bool:
    """Returns whether the values are a frame or series of pandas, without importing it."""
    return hasattr(values, "index") and hasattr(values, "to_numpy")


def columns_of(clients: Any) -> tuple[str, ...] | None:
    """Returns the names of the columns of the first data frame among the clients' inputs x.

    None for arrays, and for names that are no text.

    Args:
        clients: for each the inputs, or a mapping with the inputs x.
    """
    # arrays of all clients, which are no frames
    if isinstance(clients, Ragged):
        return None
    for client in clients:
        x: Any = client.get("x") if isinstance(client, Mapping) else client
        # frames of pandas, which `Frames` brings into one order too
        if type(x) is not np.ndarray and all(map(partial(hasattr, x), _OF_FRAMES)):
            return _as_names(x.columns)
    return None


_OF_FRAMES = ("index", "to_numpy", "columns")
"""Attributes that tell a data frame of pandas, which is not imported."""


class ColumnOrder(Frames):
    """Order of the columns of data frames, which is that of given names if there are any.

    Args:
        columns: names of the columns of x, None if the first frame decides.
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        super().__init__()
        if columns is not None:
            self._columns["x"] = list(columns)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns of x, None if no frame has come or if they are no text."""
        return _as_names(self._columns.get("x"))


def _as_names(columns: Iterable[Any] | None) -> tuple[str, ...] | None:
    names = None if columns is None else tuple(columns)
    is_text = names is not None and all(isinstance(name, str) for name in names)
    return names if is_text else None
