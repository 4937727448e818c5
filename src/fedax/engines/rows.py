"""Arrays that grow by one row after the other, at the memory of their numbers."""

from typing import Any

import numpy as np


class Rows:
    """Values of one shape, in one piece of memory that doubles as they come.

    A list of what an engine returns would keep a buffer of the device, and kilobytes beside it, for every number.

    >>> rows = Rows()
    >>> rows.append(np.float64(1.0))
    >>> rows.append(np.float64(2.0))
    >>> rows.all().tolist(), float(rows.last)
    ([1.0, 2.0], 2.0)

    Args:
        values: the first rows.
    """

    def __init__(self, values: np.ndarray | None = None) -> None:
        self._kept, self._count = (None, 0) if values is None else (np.array(values), len(values))

    def append(self, value: Any) -> None:
        """Adds a row; one of another shape than the others is refused."""
        value = np.asarray(value)
        if self._kept is None:
            self._kept = np.empty((8, *value.shape), value.dtype)
        if value.shape != self._kept.shape[1:]:
            raise ValueError(f"a row of shape {value.shape} among rows of shape {self._kept.shape[1:]}")
        if self._count == len(self._kept) or self._kept.dtype != value.dtype:
            larger = np.empty((max(8, 2 * self._count), *value.shape), np.result_type(self._kept.dtype, value.dtype))
            larger[: self._count] = self._kept[: self._count]
            self._kept = larger
        self._kept[self._count] = value
        self._count += 1

    @property
    def last(self) -> Any:
        """The newest row."""
        assert self._kept is not None, "no rows yet"
        return self._kept[self._count - 1]

    def all(self) -> np.ndarray:
        """All rows, as a copy."""
        assert self._kept is not None, "no rows yet"
        return self._kept[: self._count].copy()
