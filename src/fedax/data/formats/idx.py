"""The IDX format, in which MNIST and its relatives are distributed."""

import math
import struct
from pathlib import Path

import numpy as np

from fedax.core import DataError
from fedax.data.folder import read_whole
from fedax.data.limits import checked

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""NumPy's name of an element type by the third byte of a file."""
MOST_AXES = 8


@checked()
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
    allowed = "IDX: two zero bytes, type, number of axes, their lengths, then the elements"
    if (
        len(content) < 4
        or content[:2] != b"\0\0"
        or content[2] not in TYPES
        or len(content) < 4 + 4 * content[3]
    ):
        raise DataError.of(
            path.name, f"a file at {path} that begins with {content[:4].hex(' ')}", allowed
        )
    axes = content[3]
    if axes > MOST_AXES:
        raise DataError.of(
            path.name, f"a file at {path} of {axes} axes", f"at most {MOST_AXES} axes"
        )
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    dtype, start = np.dtype(TYPES[content[2]]), 4 + 4 * axes
    expected = start + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        got = f"a file at {path} of {len(content)} bytes"
        raise DataError.of(
            path.name, got, f"{expected} bytes, as its header says: shape {shape} of {dtype.name}"
        )
    try:
        values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    except ValueError as error:
        # an axis of length 0 beside lengths whose product is too large for an array
        raise DataError.of(
            path.name, f"a file at {path} of shape {shape}", "the shape of an array"
        ) from error
    return values.astype(dtype.newbyteorder("="))
