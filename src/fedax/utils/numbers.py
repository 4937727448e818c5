"""Conversion of NumPy's and JAX's numbers to Python's, where arguments come in."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


def python_numbers(value: Any) -> Any:
    """Converts a number of NumPy or JAX, or those of a list, which becomes a tuple, to Python's.

    Anything else is returned unchanged. Records, hashes and files then have the same contents for
    `np.int64(2)` as for 2. Booleans stay what they are, because no argument takes them for numbers.

    >>> python_numbers(np.int64(2)), python_numbers([np.float32(0.5), "all"])
    (2, (0.5, 'all'))
    """
    if type(value) in (list, tuple):
        return tuple(map(python_numbers, value))
    is_array = isinstance(value, np.generic | np.ndarray | jax.Array)
    # by the kind of the type, because np.timedelta64 derives from np.integer
    if is_array and not isinstance(value, Tracer) and not value.ndim and value.dtype.kind in "iuf":
        return value.item()
    return value


def convert_fields(owner: Any) -> None:
    """Converts the fields of a frozen dataclass, for its `__post_init__`."""
    for field in dataclasses.fields(owner):
        object.__setattr__(owner, field.name, python_numbers(getattr(owner, field.name)))


def are_counts(*values: Any) -> bool:
    """Returns whether all values are whole numbers of at least 1, and no booleans.

    >>> are_counts(3, 1), are_counts(3, True), are_counts(3, 0)
    (True, False, False)
    """
    return all(type(value) is int and value >= 1 for value in values)
