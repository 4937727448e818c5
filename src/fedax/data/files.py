"""A folder with one file per client: `.npz`, CSV or Parquet."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedax.core import DataError
from fedax.data.federated import FederatedData, Labelled
from fedax.data.folder import MissingFile, read_whole


def client_files(folder: str | Path, classes: int | None = None, label: str = "y", name: str | None = None) -> FederatedData:
    r"""One client for each file of a folder, in the order of the files' names.

    A file is an `.npz` archive with the array x and the label's, any further arrays beside them; or a table, `.csv` (also
    `.csv.gz`, with a header) or `.parquet`, whose columns other than the label's are the features, in their order. If the
    folder holds a folder `train`, and perhaps `test` with files of the same names, these are the training and the test part.

    Args:
        folder: see above.
        classes: labels are 0 to classes - 1; one more than the largest label by default.
        label: the array or column of the labels.
        name: for tables and messages; that of the folder by default.

    Raises:
        DataError: no file, a file that cannot be read, a missing label, text where numbers should be, or what `FederatedData`
            refuses. Parquet needs `pip install fedax[parquet]`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for client in ("anna", "berta"):
    ...         _ = (Path(folder) / f"{client}.csv").write_text("height,weight,y\n1.5,60,0\n1.8,80,1\n")
    ...     data = client_files(folder)
    >>> data.clients, data.classes, data.train[0]["x"].tolist()
    (2, 2, [[1.5, 60.0], [1.8, 80.0]])
    """
    folder = Path(folder)
    parts = folder / "train" if (folder / "train").is_dir() else folder
    train = _read_all(parts, label)
    if not train:
        hint = "Put one .npz, .csv or .parquet file for each client there."
        raise MissingFile.of(
            "client_files(folder=...)", f"no data file in {parts}", "a folder with one file per client", hint
        )
    test = _read_all(folder / "test", label) if (folder / "test").is_dir() else {}
    for stranger in sorted(set(test) - set(train)):
        raise DataError.of("client_files(folder=...)", f"a test part of {stranger!r}", "clients with a file in train too")
    first = next(iter(train.values()))
    nothing = {key: values[:0] for key, values in first.items()}
    labels = [part["y"] for part in (*train.values(), *test.values()) if part["y"].dtype.kind in "iu"]
    most = max((int(held.max(initial=0)) for held in labels), default=0)
    tested = [test.get(client, nothing) for client in train] if test else None
    return FederatedData(list(train.values()), classes or most + 1, tested, name=name or folder.name)


def _read_all(folder: Path, label: str) -> dict[str, Labelled]:
    if not folder.is_dir():
        raise MissingFile.of("client_files(folder=...)", f"no folder {folder}", "a folder with one file per client")
    found: dict[str, Labelled] = {}
    for path in sorted(folder.iterdir()):
        suffix = path.suffixes[0] if path.suffix == ".gz" and path.suffixes else path.suffix
        if suffix in READERS and path.is_file():
            client = path.name.removesuffix(".gz").removesuffix(suffix)
            if client in found:
                raise DataError.of("client_files(folder=...)", f"two files of {client!r}", "one file for each client")
            found[client] = READERS[suffix](path, label)
    return found


def _npz(path: Path, label: str) -> Labelled:
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {key: file[key] for key in file.files}
    except Exception as error:  # zip, zlib, header: any layer below can fail
        raise DataError.of(path.name, f"a file at {path} that cannot be read ({error})", "a whole .npz archive") from error
    return {("y" if key == label else key): values for key, values in _with_label(path, label, held).items()}


def _csv(path: Path, label: str) -> Labelled:
    try:
        header, *rows = csv.reader(io.StringIO(read_whole(path).decode("utf-8-sig")))
        table = np.array([row for row in rows if row], dtype=float).reshape(-1, len(header))
    except ValueError as error:
        got = f"a file at {path} that cannot be read ({error})"
        raise DataError.of(path.name, got, "a header and rows of numbers, all of one length") from error
    return _table(path, label, dict(zip(header, table.T)))


def _parquet(path: Path, label: str) -> Labelled:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        hint = "Run pip install fedax[parquet]."
        raise DataError.of(path.name, "a Parquet file without pyarrow", "an installed pyarrow", hint) from error
    try:
        table = parquet.read_table(path)
        columns = {column: np.asarray(table[column].to_numpy(), float) for column in table.column_names}
    except (OSError, ValueError, TypeError) as error:  # pyarrow's own errors derive from these
        got = f"a file at {path} that cannot be read ({error})"
        raise DataError.of(path.name, got, "a Parquet table of numbers") from error
    return _table(path, label, columns)


def _table(path: Path, label: str, columns: dict[str, np.ndarray]) -> Labelled:
    labels = _with_label(path, label, columns)[label]
    features = [values for column, values in columns.items() if column != label]
    if not features:
        raise DataError.of(path.name, f"only the column {label!r}", "at least one column of features")
    whole = labels.astype(int) if np.all(np.isfinite(labels)) and np.array_equal(labels, np.floor(labels)) else labels
    return {"x": np.column_stack(features), "y": whole}


def _with_label(path: Path, label: str, held: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if label not in held:
        raise DataError.of(path.name, sorted(held), f"the name {label!r} of the labels among them", f"The file is {path}.")
    return held


READERS: dict[str, Callable[[Path, str], Labelled]] = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
"""By a file's ending."""
