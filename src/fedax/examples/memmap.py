"""Arrays in files, read a few rows at a time rather than mapped into memory for good."""

import os
from collections.abc import Iterator

import numpy as np

BLOCK = 1 << 24
"""Bytes that are looked at together in a pass over a whole array."""


READS = hasattr(os, "preadv")
"""Whether the system reads from a place in a file into an array; otherwise arrays in files are
sliced, as others are.
"""


class RowReader:
    """Consecutive rows of an array.

    A memory-mapped array that is a whole file is read from the file, so that the pages do not count
    as memory of the process; any other array is sliced.

    >>> RowReader(np.arange(10)).read(3, 2).tolist()
    [3, 4]

    Args:
        values: the array, first axis rows.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.bytes = values.dtype.itemsize * int(np.prod(values.shape[1:]))
        self._file = None
        self._file_offset = 0
        if (
            isinstance(values, np.memmap)
            and values.filename is not None
            and values.flags.c_contiguous
            and READS
        ):
            self._file_offset = values.offset
            # a slice keeps the offset of the whole array, so that its rows do not end with the file
            if self._file_offset + values.nbytes == os.path.getsize(values.filename):
                self._file = open(values.filename, "rb", buffering=0)  # noqa: SIM115, closed with the reader

    def read(self, begin: int, count: int) -> np.ndarray:
        """Returns rows `begin` to `begin + count`, as many as there are."""
        count = min(count, len(self.values) - begin)
        if self._file is None:
            return self.values[begin : begin + count]
        rows = np.empty((count, *self.values.shape[1:]), self.values.dtype)
        view = rows.reshape(-1).view(np.uint8).data
        offset = self._file_offset + begin * self.bytes
        done = 0
        while done < len(view):
            # a read may return less than it was asked for
            received = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if not received:
                raise OSError(
                    f"{self._file.name} ends after {offset + done} bytes; it was "
                    "longer when it was opened"
                )
            done += received
        return rows

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


def blocks(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the rows of an array in consecutive blocks; an array in memory is one block.

    >>> [block.tolist() for block in blocks(np.arange(3))]
    [[0, 1, 2]]
    """
    if not isinstance(values, np.memmap):
        yield values
        return
    reader = RowReader(values)
    rows = max(1, BLOCK // max(reader.bytes, 1))
    for begin in range(0, len(values), rows):
        yield reader.read(begin, rows)
