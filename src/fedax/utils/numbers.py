"""Conversion of NumPy's scalars to Python's numbers, where arguments come in."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


def python_number(value: Any) -> Any:
    """Converts a NumPy integer or float to Python's number; returns anything else unchanged.

    Records, hashes and files then have the same contents for `np.int64(2)` as for 2. Booleans stay
    what they are, because no argument takes them for numbers.

    >>> python_number(np.int64(2)), python_number(np.float32(0.5)), python_number("full")
    (2, 0.5, 'full')
    """
    if not isinstance(value, np.generic):
        return value
    # by the kind of the type, because np.timedelta64 derives from np.integer
    if value.dtype.kind in "iu":
        return int(value.item())
    return float(value.item()) if value.dtype.kind == "f" else value


def python_numbers(value: Any) -> Any:
    """Converts as `python_number`, and the entries of a list or tuple, which becomes a tuple.

    >>> python_numbers([np.int64(2), "all"]), python_numbers(np.int64(2))
    ((2, 'all'), 2)
    """
    if type(value) in (list, tuple):
        return tuple(map(python_number, value))
    return python_number(value)


def python_tree(value: Any) -> Any:
    """Converts as `python_number` within dicts, lists and tuples, which keep their types.

    >>> python_tree({"seeds": [np.int64(2)], "epochs": (np.int64(1), 3)})
    {'seeds': [2], 'epochs': (1, 3)}
    """
    if type(value) is dict:
        return {key: python_tree(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(python_tree, value))
    return python_number(value)


def convert_fields(owner: Any, convert: Callable[[Any], Any] = python_number) -> None:
    """Converts the fields of a frozen dataclass, for its `__post_init__`."""
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        object.__setattr__(owner, field.name, convert(value))


def are_counts(*values: Any, least: int = 1) -> bool:
    """Returns whether all values are whole numbers of at least `least`, and no booleans.

    >>> are_counts(3, 1), are_counts(3, True), are_counts(3, 0)
    (True, False, False)
    """
    return all(
        isinstance(value, int) and not isinstance(value, bool) and value >= least
        for value in values
    )
