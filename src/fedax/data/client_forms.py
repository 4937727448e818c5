"""Clients' data in the forms that users have them: mappings by name, and what messages say."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedax.errors import DataError, shown
from fedax.examples.arrays import as_array
from fedax.examples.client_names import by_client_name, number_of
from fedax.examples.integer_ranges import LABELS_HINT

FILL = "Fill the cell, or leave the row out."
"""What to do about a missing value in a table."""
REGRESSION = "fedax.tasks.from_loss takes real ones, for regression."


def describe(value: Any) -> str:
    """Returns the types and shapes of some data, instead of their content.

    >>> describe({"x": np.ones((3, 2)), "y": [0, 1, 0]}), describe((np.ones(3), None))
    ("a dict of 'x': float64[3, 2], 'y': list[3]", 'a tuple of float64[3], None')
    """
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeio" else "a"
    if is_frame(value):
        return f"{article} {kind} of the columns {', '.join(repr(str(c)) for c in value.columns)}"
    if isinstance(value, Mapping):
        items = ", ".join(f"{str(key)!r}: {_describe_entry(owned)}" for key, owned in value.items())
        return f"{article} {kind} of {items}" if items else f"an empty {kind}"
    if isinstance(value, list | tuple):
        items = ", ".join(map(_describe_entry, value))
        return f"{article} {kind} of {items}" if items else f"an empty {kind}"
    if isinstance(value, np.ndarray) or (hasattr(value, "shape") and hasattr(value, "dtype")):
        return _describe_entry(value)
    return shown(value)


def _describe_entry(value: Any) -> str:
    """Returns the type and shape of a value within others."""
    kind = type(value).__name__
    if value is None or isinstance(value, str | int | float):
        return shown(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{[*value.shape]}"
    if is_frame(value):
        return f"{kind}{[*value.shape]}"
    return f"{kind}[{len(value)}]" if hasattr(value, "__len__") else kind


def is_frame(value: Any) -> bool:
    """Returns whether a value is a data frame of pandas, which is not imported."""
    # neither `np.ndarray` nor a series has all of these
    return all(hasattr(value, name) for name in ("groupby", "columns", "to_numpy"))


def named_clients(clients: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Returns clients by their names.

    Args:
        clients: by name, the arrays of each.
        where: names them in messages.

    Raises:
        DataError: the arrays of one client, or two clients of the same name.

    >>> list(named_clients({1: {"x": [0.0]}, "b": {"x": [1.0]}}, "train"))
    ['1', 'b']
    """
    if not all(isinstance(owned, Mapping) for owned in clients.values()):
        hint = (
            "Put the arrays of each client into a list, such as [{'x': ..., 'y': ...}]."
            if where == "train"
            else "Examples that belong to no client are the central: central=..."
        )
        allowed = "a list with the arrays of each client, or a dict of names to them"
        raise DataError.found(where, describe(clients), allowed, hint)
    return by_client_name(clients, where)


def match_clients(
    clients: Mapping[Any, Any], train: Sequence[Any], names: Sequence[str] | None, where: str
) -> list[Any]:
    """Returns another part of the clients' data in the order of their training examples.

    Clients that it lacks have no examples.

    Args:
        clients: by name, or by number if they have no names.
        train: the arrays of each client.
        names: of the clients, or None.
        where: names the part in messages.

    Raises:
        DataError: a client without training examples.
    """
    by_name = named_clients(clients, where)
    by_index = {number_of(name, names, len(train), where): own for name, own in by_name.items()}
    return [by_index[k] if k in by_index else make_empty(own) for k, own in enumerate(train)]


def make_empty(client: Any) -> Any:
    """Returns no rows, in the form of a client's."""
    if isinstance(client, Mapping):
        return {
            name: as_array(values, f"clients[...][{name!r}]")[:0] for name, values in client.items()
        }
    return as_array(client, "clients[...]")[:0]


def check_finite(
    arrays: Mapping[str, Any], where: str, columns: Sequence[str] | None, owner: str = ""
) -> None:
    """Refuses NaN and infinity in arrays; the message has the column and what to do.

    Args:
        arrays: of a client.
        where: names the client in messages.
        columns: names of the columns of x, or None.
        owner: further words on the client, such as its name.
    """
    for key, values in arrays.items():
        array = as_array(values, f"{where}[{key!r}]")
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        row, *rest = (int(index) for index in np.argwhere(~np.isfinite(array))[0])
        names = getattr(values, "columns", columns if key == "x" else None)
        column = (
            f" of the column {str(names[rest[0]])!r}"
            if names is not None and len(rest) == 1 and rest[0] < len(names)
            else ""
        )
        raise DataError.found(
            f"{where}[{key!r}]",
            f"NaN or infinity in row {row}{column}{owner}",
            "finite numbers",
            FILL,
        )


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


def check_labels(labels: np.ndarray, where: str) -> None:
    """Refuses labels that are no whole numbers; the message says how to make them such."""
    if labels.dtype.kind in "iu" or not len(labels):
        return
    allowed, got, hint = "labels that are whole numbers", str(labels.dtype), ""
    if labels.dtype.kind == "b":
        hint = "Write .astype(int)."
    elif labels.dtype.kind == "f" and labels.ndim == 1:
        is_whole = labels == np.floor(labels)
        hint = "Write .astype(int)." if is_whole.all() else REGRESSION
        row = int(np.argmin(is_whole))
        got += "" if is_whole.all() else f", {labels[row]} in row {row}"
    raise DataError.of(where, got, allowed, hint)
