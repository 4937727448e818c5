"""The IDX format, in which MNIST and its relatives are distributed."""

from pathlib import Path

import numpy as np

from fedax.core import DataError
from fedax.data.folder import read_whole, reading

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""NumPy's name of an element type by the third byte of a file."""


def read_idx(path: str | Path) -> np.ndarray:
    """Reads the array of an IDX file, plain or gzipped.

    The file holds two zero bytes, a byte for the type, a byte for the number of axes, the lengths
    of the axes as 32-bit numbers and the elements, all with the most significant byte first.

    Raises:
        DataError: a missing file, another format, or fewer or more elements than the header says.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([5, 0, 4]))
    ...     read_idx(path).tolist()
    [5, 0, 4]
    """
    path = Path(path)
    content = read_whole(path)
    with reading(path, "IDX: two zero bytes, type, number of axes, their lengths, the elements"):
        if content[:2] != b"\0\0":
            raise DataError.of(path.name, f"a file at {path} that begins otherwise", "IDX")
        dtype = np.dtype(TYPES[content[2]])
        start = 4 + 4 * content[3]
        shape = np.frombuffer(content[4:start], ">u4").tolist()
        values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))
