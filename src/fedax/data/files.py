"""A folder with one file per client: `.npz`, CSV or Parquet."""

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedax.core import DataError
from fedax.core.errors import install_hint
from fedax.data.federated import FederatedData, Labelled
from fedax.data.folder import MissingFile, read_npz, read_whole
from fedax.data.limits import checked


@checked()
def client_files(folder: str | Path, classes: int | None = None, label: str = "y", name: str | None = None) -> FederatedData:
    r"""One client for each file of a folder, in the order of the files' names.

    A file is an `.npz` archive with the array x and the label's, any further arrays beside them; or a table, `.csv` (also
    `.csv.gz`, with a header) or `.parquet`, whose columns other than the label's are the features, in the order of the first
    file: columns are matched by name. If the folder holds a folder `train`, and perhaps `test` with files of the same names,
    these are the training and the test part.

    Args:
        folder: see above.
        classes: labels are 0 to classes - 1; one more than the largest label by default, which is then at most 9,999.
        label: the array or column of the labels.
        name: for tables and messages; that of the folder by default.

    Raises:
        DataError: no file, a file that cannot be read, a missing label, text where numbers should be, rows or
            columns that do not match the header or the first file, or what `FederatedData`
            refuses. Parquet needs the extra `parquet`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for client in ("anna", "berta"):
    ...         _ = (Path(folder) / f"{client}.csv").write_text("height,weight,y\n1.5,60,0\n1.8,80,1\n")
    ...     data = client_files(folder)
    >>> data.clients, data.classes, data.train[0]["x"].tolist()
    (2, 2, [[1.5, 60.0], [1.8, 80.0]])
    """
    folder = Path(folder)
    parts = folder / "train" if os.path.isdir(folder / "train") else folder
    order = _Order(label)
    train = _read_all(parts, label, order)
    if not train:
        hint = "Put one .npz, .csv or .parquet file for each client there."
        raise MissingFile.of(
            "client_files(folder=...)", f"no data file in {parts}", "a folder with one file per client", hint
        )
    test = _read_all(folder / "test", label, order) if os.path.isdir(folder / "test") else {}
    for stranger in sorted(set(test) - set(train)):
        raise DataError.of("client_files(folder=...)", f"a test part of {stranger!r}", "clients with a file in train too")
    first = next(iter(train.values()))
    nothing = {key: values[:0] for key, values in first.items()}
    labels = [part["y"] for part in (*train.values(), *test.values()) if part["y"].dtype.kind in "iu"]
    most = max((int(held.max(initial=0)) for held in labels), default=0)
    if classes is None and most > 9_999:
        raise DataError.of("client_files(classes=...)", f"a label {most} without the number of classes", "that number")
    tested = [test.get(client, nothing) for client in train] if test else None
    return FederatedData(list(train.values()), classes or most + 1, tested, name=name or folder.name)


class _Order:
    """Names of the features of the first table; later ones have the same, and take their order."""

    def __init__(self, label: str) -> None:
        self.label, self.names = label, None

    def __call__(self, path: Path, columns: dict[str, np.ndarray]) -> Labelled:
        labels = _with_label(path, self.label, columns)[self.label]
        names = [column for column in columns if column != self.label]
        if not names:
            raise DataError.of(path.name, f"only the column {self.label!r}", "at least one column of features")
        self.names = self.names or names
        if set(names) != set(self.names):
            raise DataError.of(
                path.name, f"the columns {names}", f"those of the first file: {self.names}", f"The file is {path}."
            )
        small = np.isfinite(labels).all() and (np.abs(labels) < 2.0**53).all() and np.array_equal(labels, np.floor(labels))
        return {
            "x": np.column_stack([columns[name] for name in self.names]),
            "y": labels.astype(np.int64) if small else labels,
        }


def _read_all(folder: Path, label: str, order: _Order) -> dict[str, Labelled]:
    if not os.path.isdir(folder):  # unlike the method, False also for a name that no folder can have
        raise MissingFile.of("client_files(folder=...)", f"no folder {folder}", "a folder with one file per client")
    found: dict[str, Labelled] = {}
    for path in sorted(folder.iterdir()):
        suffix = path.suffixes[0] if path.suffix == ".gz" and path.suffixes else path.suffix
        if suffix in (".npz", *TABLES):
            if not os.path.isfile(path):
                raise DataError.found(path.name, f"no plain file at {path}", "a data file")
            client = path.name.removesuffix(".gz").removesuffix(suffix)
            if client in found:
                raise DataError.of("client_files(folder=...)", f"two files of {client!r}", "one file for each client")
            found[client] = _npz(path, label) if suffix == ".npz" else order(path, TABLES[suffix](path))
    return found


def _npz(path: Path, label: str) -> Labelled:
    held = read_npz(path)
    for key, values in held.items():
        if not values.ndim:
            raise DataError.found(path.name, f"the scalar {key!r}", "arrays of one row per example", f"The file is {path}.")
    return {("y" if key == label else key): values for key, values in _with_label(path, label, held).items()}


def _csv(path: Path) -> dict[str, np.ndarray]:
    try:
        header, *rows = csv.reader(io.StringIO(read_whole(path).decode("utf-8-sig")))
        for row in rows:
            if row and len(row) != len(header):
                raise ValueError(f"{len(row)} fields in the row {', '.join(row)[:60]!r} under {len(header)} headings")
        if len(set(header)) < len(header):
            raise ValueError(f"the heading {next(name for name in header if header.count(name) > 1)!r} twice")
        table = np.array([row for row in rows if row], dtype=float).reshape(-1, len(header))
    except (ValueError, csv.Error) as error:
        got = f"a file at {path} that cannot be read ({error})"
        raise DataError.of(path.name, got, "a header of different names, and rows of as many numbers") from error
    return dict(zip(header, table.T))


def _parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        hint = f"Run: {install_hint('parquet')}"
        raise DataError.of(path.name, "a Parquet file without pyarrow", "an installed pyarrow", hint) from error
    try:
        table = parquet.read_table(path)
        return {column: np.asarray(table[column].to_numpy(), float) for column in table.column_names}
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
    ) as error:  # pyarrow's own errors derive from these; KeyError: a name twice
        got = f"a file at {path} that cannot be read ({error})"
        raise DataError.of(path.name, got, "a Parquet table of numbers") from error


def _with_label(path: Path, label: str, held: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if label not in held:
        raise DataError.of(path.name, sorted(held), f"the name {label!r} of the labels among them", f"The file is {path}.")
    return held


TABLES: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {".csv": _csv, ".parquet": _parquet}
"""Readers of columns, by a file's ending."""
