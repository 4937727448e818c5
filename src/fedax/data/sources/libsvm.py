"""Data sets in the text format of LIBSVM."""

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fedax.core import DataError
from fedax.data.files import FILES
from fedax.data.folder import data_file, read_whole, reading, verify
from fedax.data.options import Clients, Count, Folder, Seed, Share, Split, validated
from fedax.data.partition import partition_by
from fedax.examples.federated import FederatedData

MOST_NUMBERS = 1 << 30
"""Of a table, whose zeros are not in the file."""


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
    return _parse(read_whole(path), path, features)


@validated
def libsvm(
    file: str = "a5a",
    partition: str = "index",
    clients: Clients = 20,
    seed: Seed = 0,
    test_fraction: Share = 0.0,
    split: Split = "shuffled",
    features: Count | None = None,
    folder: Folder = None,
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
        UnknownName: no such partition.
        InvalidInput: an argument out of range.
        DataError: a missing, damaged, malformed or different file; or examples that do not suffice.

    Source: Chang and Lin, LIBSVM (2011), data page; a5a and a9a from Adult and mushrooms from
    Mushroom (UCI repository), w8a from Platt (1998).
    """
    how = "Put the file there in LIBSVM's text format, plain or gzipped (.gz)."
    path = data_file(folder, how, f"libsvm/{file}.gz", f"libsvm/{file}", f"{file}.gz", file)
    text = read_whole(path)
    if f"libsvm/{file}" in FILES:
        verify(file, FILES[f"libsvm/{file}"].sha256, [text], path)
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

    content = io.BytesIO(text)
    # scikit-learn's annotations are narrower than what it takes
    how: dict[str, Any] = {"n_features": features, "dtype": np.float32, "zero_based": False}
    with reading(path, "lines 'label index:value ...' with indices from 1"):
        table, values = load_svmlight_file(content, **how)
    finite = np.isfinite(values).all() and np.isfinite(table.data).all()
    if not len(values) or not finite or np.prod(table.shape, dtype=float) > MOST_NUMBERS:
        got = f"a file at {path} with a table of shape {table.shape}"
        allowed = f"at least one example, finite numbers, and a table of up to {MOST_NUMBERS}"
        raise DataError.found(path.name, got, allowed)
    return table.toarray(), np.unique(values, return_inverse=True)[1]
