"""Data sets in the text format of LIBSVM."""

import functools
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fedax.core import DataError, InvalidInput
from fedax.data.federated import FederatedData
from fedax.data.folder import MOST_BYTES, data_file, read_whole, reading, verify
from fedax.data.limits import DEALT, checked, whole
from fedax.data.partition import check_partition, partition_by


@dataclass(frozen=True)
class Known:
    """Content of a published file: SHA-256 of its text, and counts for `fedax data list`."""

    sha256: str
    rows: int
    features: int


KNOWN = {
    "a5a": Known("5cb3a6603de0a0eb43afcdd45b1820c71ee7f20da1c09f054696bb71cbc45ad8", 6_414, 122),
    "a9a": Known("f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906", 32_561, 123),
    "mushrooms": Known(
        "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538", 8_124, 112
    ),
    "w8a": Known("6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2", 49_749, 300),
}
_HOW = (
    "Put the file there in LIBSVM's text format, plain or gzipped (.gz), as the LIBSVM data "
    "page distributes it."
)


@checked()
def read_libsvm(
    path: str | Path, features: int | None = None
) -> tuple[Float[np.ndarray, "examples features"], Int[np.ndarray, "examples"]]:
    r"""Reads `label index:value ...` lines, plain or gzipped.

    Indices count from 1; missing values are 0.

    Args:
        path: of the file.
        features: columns of the result; the largest index in the file by default.

    Returns:
        A dense array of single precision, and labels from 0 on in the order of the file's label
        values: the larger of two labels becomes 1.

    Raises:
        DataError: a missing, damaged or malformed file, or more columns than `features`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "toy"
    ...     _ = path.write_text("-1 1:0.5 3:1\n+1 2:2\n")
    ...     x, y = read_libsvm(path)
    >>> x.tolist(), y.tolist()
    ([[0.5, 0.0, 1.0], [0.0, 2.0, 0.0]], [0, 1])
    """
    path = Path(path)
    return _parse(read_whole(path, _HOW), path, features)


@checked(**DEALT)
def libsvm(
    file: str = "a5a",
    partition: str = "index",
    clients: int = 20,
    seed: int = 0,
    test_fraction: float | int = 0.0,
    split: str = "shuffled",
    features: int | None = None,
    folder: str | Path | None = None,
    **options: Any,
) -> FederatedData:
    """Reads a LIBSVM text file as federated data.

    `a5a`, `a9a`, `mushrooms` and `w8a` are this function with their file.

    | file | examples | features | of the larger label |
    |---|---|---|---|
    | `a5a` | 6,414 | 122 (123 in a9a) | 1,569 |
    | `a9a` | 32,561 | 123 | 7,841 |
    | `mushrooms` | 8,124 | 112 | 4,208 |
    | `w8a` | 49,749 | 300 | 1,479 |

    Args:
        file: one of the four, whose content is then verified, or the name of any other file; looked
            for in the folder and in its subfolder `libsvm`, with and without `.gz`.
        partition: a name of `fedax.data.partition`. "index" cuts the file into contiguous blocks,
            as the local GD paper does.
        clients: at least 1.
        seed: of partition and split.
        test_fraction: share of each client's examples kept for testing, in [0, 1).
        split: `"shuffled"` draws them, `"in_order"` takes the last ones.
        features: columns; the largest index in the file by default. 123 gives a5a the width of a9a.
        folder: where the file lies; see `fedax.data.data_folder`.
        options: of the partition.

    Raises:
        UnknownName: no such partition or option.
        InvalidInput: an argument out of range, before the file is read.
        DataError: a missing, damaged, malformed or different file; or examples that do not suffice.

    Source: Chang and Lin, LIBSVM (2011), data page; a5a and a9a from Adult and mushrooms from
    Mushroom (UCI repository), w8a from Platt (1998).
    """
    check_partition(partition, clients, seed, **options)
    if features is not None and not whole(low=1).allows(features):
        raise InvalidInput.of("libsvm(features=...)", features, f"{whole(low=1).allowed}, or None")
    path = data_file(f"libsvm/{file}.gz", folder, _HOW, [f"libsvm/{file}", f"{file}.gz", file])
    text = read_whole(path, _HOW)
    if file in KNOWN:
        verify(file, KNOWN[file].sha256, [text], path, _HOW)
    x, y = _parse(text, path, features)
    return FederatedData.partitioned(
        x,
        y,
        partition_by(partition, y, clients, seed, **options),
        classes=int(y.max()) + 1,
        test_fraction=test_fraction,
        split=split,
        seed=seed,
        name=f"{file}, {partition}",
    )


a5a = functools.partial(libsvm, "a5a")
a9a = functools.partial(libsvm, "a9a")
mushrooms = functools.partial(libsvm, "mushrooms")
w8a = functools.partial(libsvm, "w8a")


def _parse(
    text: bytes, path: Path, features: int | None
) -> tuple[Float[np.ndarray, "examples features"], Int[np.ndarray, "examples"]]:
    from sklearn.datasets import load_svmlight_file  # takes a second to import, so only on demand

    load_options: dict[str, Any] = {
        "n_features": features,
        "dtype": np.float32,
        "zero_based": False,
    }
    with reading(path, "lines 'label index:value ...' with indices from 1", _HOW):
        table, values = load_svmlight_file(io.BytesIO(text), **load_options)
    if not len(values):
        raise DataError.of(
            path.name, f"a file at {path} without a line", "at least one example", _HOW
        )
    if not np.isfinite(values).all() or not np.isfinite(table.data).all():
        raise DataError.of(
            path.name, f"a file at {path} with NaN or infinity", "finite labels and values", _HOW
        )
    if 4 * table.shape[0] * table.shape[1] > MOST_BYTES:
        got = f"{table.shape[0]} examples of {table.shape[1]} columns in {path}"
        raise DataError.of(
            path.name, got, f"at most {MOST_BYTES} bytes as rows of single precision", _HOW
        )
    return table.toarray(), np.unique(values, return_inverse=True)[1]
