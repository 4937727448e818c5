"""A folder with one file per client: `.npz`, CSV or Parquet."""

import contextlib
import csv
import dataclasses
import io
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import DataError, InvalidInput
from fedax.data.client_forms import count_classes, make_empty
from fedax.data.federated import MOST_CLASSES, FederatedData, Labelled
from fedax.data.folder import MissingFile, import_extra, read_npz, read_whole, reading
from fedax.data.formats.columns import Columns, check_label, normalize
from fedax.data.limits import SEED, SPLIT, TEST_FRACTION, checked
from fedax.examples.client_names import ClientNames, grouped_by_name, natural
from fedax.examples.overlap import draw_rows

CLASSES = "client_files(classes=...)"


@checked(test_fraction=TEST_FRACTION, seed=SEED, split=SPLIT)
def client_files(
    folder: Any,
    classes: int | None = None,
    label: str = "y",
    name: str | None = None,
    drop: Any = (),
    *,
    labels: Any = (),
    categories: Any = None,
    client: str | None = None,
    test_fraction: float | int = 0.0,
    seed: int = 0,
    split: str = "shuffled",
) -> FederatedData:
    r"""Reads a folder with one file for each client.

    Clients are named as their files, in the order of the names: `client2` before `client10`.

    A file is an `.npz` archive with the array x and the label's, any further arrays beside them; or
    a table, `.csv` (also `.csv.gz`, with a header) or `.parquet`, whose columns other than the
    label's are the features, in the order of the first file: columns are matched by name. Folders
    `test` and `validation` hold files of the same names for these parts; the training part is in a
    folder `train` beside them, or beside them. With `client`, all clients are in one table, whose
    column of that name says whose a row is.

    Args:
        folder: see above; with `client`, the path of the table, or a frame of pandas.
        classes: labels are 0 to classes - 1; one more than the largest label by default. The
            smallest is then 0, and the largest at most 9,999.
        label: the array or column of the labels.
        name: for tables and messages; that of the folder by default.
        drop: names of columns, or of arrays, that are no data, such as ids; a list, or one name.
        labels: the texts that the labels of tables are, in the order of their numbers: `["healthy",
            "ill"]` for 0 and 1.
        categories: by column of features, the texts that its cells are, in the order of their
            numbers.
        client: the column of a single table that names the client of each row.
        test_fraction: share of each client's examples that is kept for testing, in [0, 1); 0 with a
            folder `test`.
        seed: of the draw of test examples.
        split: "shuffled" draws them without copies of training examples among them, "in_order"
            takes the last ones.

    Raises:
        DataError: no file, a file that cannot be read, a missing label or number, text where
            numbers should be, rows or columns that do not match the header or the first file, a
            column without a name, such as the saved index of a table, or what `FederatedData`
            refuses. Parquet needs the extra `parquet`.

    Warns of files that are not read, and of columns most of whose values become equal in the floats
    of programs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for client in ("anna", "berta"):
    ...         _ = (Path(folder) / f"{client}.csv").write_text(
    ...             "height,weight,y\n1.5,60,0\n1.75,80,1\n"
    ...         )
    ...     data = client_files(folder)
    >>> data.clients, data.classes, data.train[0]["x"].tolist()
    (2, 2, [[1.5, 60.0], [1.75, 80.0]])
    """
    dropped = _check_drop_names(drop, label)
    words = _check_categories(labels, categories, label)
    if classes is not None and not 1 <= classes <= MOST_CLASSES:
        allowed = f"whole numbers from 1 to {MOST_CLASSES}, or None"
        raise InvalidInput.of(CLASSES, classes, allowed)
    if client is not None:
        uses = {"label": client == label, "drop": client in dropped, "categories": client in words}
        for option in (option for option, is_used in uses.items() if is_used):
            allowed = f"other columns than that of the clients, {client!r}"
            raise InvalidInput.of(f"client_files({option}=...)", client, allowed)
        is_path = isinstance(folder, str | Path)
        schema = Columns(label, dropped, words, client, is_file=is_path)
        return _from_table(folder, client, schema, classes, name, (test_fraction, seed, split))
    if not isinstance(folder, str | Path):
        hint = "Of a frame, name the column that says whose a row is: client=..."
        raise InvalidInput.found(
            "client_files(folder=...)", f"a {type(folder).__name__}", "text or a path", hint
        )
    folder = Path(folder).expanduser()
    if os.path.isfile(folder):
        hint = "Name the column that says whose a row is: client=..."
        raise DataError.found(
            "client_files(folder=...)",
            f"the file {folder}",
            "a folder with one file per client",
            hint,
        )
    train_folder = folder / "train" if os.path.isdir(folder / "train") else folder
    schema = Columns(label, dropped, words)
    train = _read_folder(train_folder, schema)
    if not train:
        hint = "Put one .npz, .csv or .parquet file for each client there."
        raise MissingFile.of(
            "client_files(folder=...)",
            f"no data file in {train_folder}",
            "a folder with one file per client",
            hint,
        )
    schema.check_names()
    parts = {
        part: _read_folder(folder / part, schema) if os.path.isdir(folder / part) else {}
        for part in ("test", "validation")
    }
    for part, clients in parts.items():
        for unknown_client in sorted(set(clients) - set(train)):
            raise DataError.of(
                "client_files(folder=...)",
                f"a {part} part of {unknown_client!r}",
                "clients with a file in train too",
            )
    _warn_of_unread(folder, train_folder)
    # for clients without such a part
    empty = make_empty(next(iter(train.values())))
    test, validation = (
        [clients.get(client, empty) for client in train] if clients else None
        for clients in parts.values()
    )
    label_arrays = [
        arrays["y"] for clients in (train, *parts.values()) for arrays in clients.values()
    ]
    if test_fraction and test:
        hint = "Leave test_fraction out, or the folder."
        raise InvalidInput.of(
            "client_files(test_fraction=...)",
            test_fraction,
            "0 beside a folder of test parts",
            hint,
        )
    data = FederatedData.from_arrays(
        list(train.values()),
        classes=classes or count_classes(label_arrays, words.get(label, ()), CLASSES),
        test=test,
        name=name or folder.name,
        validation=validation,
        names=ClientNames(train),
    )
    data = _with_columns(data, schema)
    return _hold_out_tests(data, list(train.values()), test_fraction, seed, split)


def _from_table(
    table: Any,
    client: str,
    schema: "Columns",
    classes: int | None,
    name: str | None,
    split_arguments: tuple[float, int, str],
) -> FederatedData:
    """Returns the clients of one table."""
    is_path = isinstance(table, str | Path)
    path = Path(table).expanduser() if is_path else Path("table")
    _, ending = split_ending(path)
    if is_path and (ending not in TABLES or not os.path.isfile(path)):
        allowed = "a file that ends in " + ", ".join(TABLES)
        raise MissingFile.of(
            "client_files(folder=...)", str(path), f"{allowed}, with client={client!r}"
        )
    if not is_path and not hasattr(table, "columns"):
        raise InvalidInput.found(
            "client_files(folder=...)", f"a {type(table).__name__}", "a path, or a frame of pandas"
        )
    columns = (
        TABLES[ending](path, schema)
        if is_path
        else _read_frame(path, schema, table, list(table.columns))
    )
    # the column of clients is no feature
    owners = columns.pop(str(schema.client))
    names, owner = grouped_by_name(owners, f"{path.name}, column {client!r}")
    examples = schema(path, columns)
    schema.check_names()
    rows = [np.flatnonzero(owner == k) for k in range(len(names))]
    train = [{key: values[client_rows] for key, values in examples.items()} for client_rows in rows]
    texts = schema.words.get(schema.label, ())
    data = FederatedData.from_arrays(
        train,
        classes=classes or count_classes([examples["y"]], texts, CLASSES),
        name=name or path.stem,
        names=ClientNames(names),
    )
    data = _with_columns(data, schema)
    return _hold_out_tests(data, train, *split_arguments)


def split_ending(path: Path) -> tuple[str, str]:
    """Returns a file's name without its ending, and the ending in lower case without `.gz`.

    >>> split_ending(Path("dr.smith.CSV.gz"))
    ('dr.smith', '.csv')
    """
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return name.stem, name.suffix.lower()


def _with_columns(data: FederatedData, schema: Columns) -> FederatedData:
    categories = {column: tuple(texts) for column, texts in (schema.categories or {}).items()}
    columns = None if schema.names is None else tuple(schema.names)
    return dataclasses.replace(data, columns=columns, categories=categories)


def _hold_out_tests(
    data: FederatedData, clients: Sequence[Labelled], share: float, seed: int, split: str
) -> FederatedData:
    """Divides the examples of each client into those for training and those for testing.

    Args:
        data: such as have been checked, so that the clients' arrays fit each other.
        clients: the arrays as they were read.
        share: for testing.
        seed: of the draw.
        split: see `client_files`.
    """
    if not share:
        return data
    offsets = np.concatenate([[0], np.cumsum([len(client["y"]) for client in clients])])
    arrays = {
        key: np.concatenate([np.asarray(client[key]) for client in clients]) for key in clients[0]
    }
    splits = draw_rows(arrays, offsets, share, seed, split, field="client_files(test_fraction=...)")
    train, test = (
        [{key: values[rows] for key, values in arrays.items()} for rows in rows_by_client]
        for rows_by_client in splits
    )
    return dataclasses.replace(
        FederatedData.from_arrays(
            train, test=test, classes=data.classes, name=data.name, names=data.names
        ),
        validation=data.validation,
        columns=data.columns,
        categories=data.categories,
    )


def _check_categories(labels: Any, categories: Any, label: str) -> dict[str, list[str]]:
    """Returns the texts of columns by name; refuses anything but lists of different texts."""
    if categories is not None and not isinstance(categories, Mapping):
        raise InvalidInput.of(
            "client_files(categories=...)",
            categories,
            "lists of texts, by the name of their column",
        )
    if label != "y" and "y" in (categories or {}):
        got = f"the feature 'y' beside the labels {label!r}, which are called 'y' in the data"
        raise InvalidInput.found("client_files(categories=...)", got, "features of other names")
    has_labels = labels is not None and not (isinstance(labels, list | tuple) and not labels)
    texts_by_column: dict[str, Any] = dict(categories or {})
    texts_by_column |= {label: labels} if has_labels else {}
    for column, texts in texts_by_column.items():
        option = "labels" if column == label else f"categories[{column!r}]"
        fits = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
        if not fits or len(set(map(normalize, texts))) < len(texts):
            raise InvalidInput.of(f"client_files({option}=...)", texts, "a list of different texts")
    # as cells are read
    return {column: [text.strip() for text in texts] for column, texts in texts_by_column.items()}


def _check_drop_names(drop: Any, label: str) -> tuple[str, ...]:
    names = [drop] if isinstance(drop, str) else drop
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not is_list or label in names:
        allowed = "a list of names of columns, without the label's"
        raise DataError.of("client_files(drop=...)", drop, allowed)
    return tuple(names)


def _read_folder(folder: Path, schema: Columns) -> dict[str, Labelled]:
    # unlike the method, False also for a name that no folder can have
    if not os.path.isdir(folder):
        raise MissingFile.of(
            "client_files(folder=...)", f"no folder {folder}", "a folder with one file per client"
        )
    clients: dict[str, Labelled] = {}
    for path in sorted(folder.iterdir(), key=lambda path: natural(path.name)):
        client, ending = split_ending(path)
        if ending in (".npz", *TABLES):
            if not os.path.isfile(path):
                raise DataError.found(path.name, f"no plain file at {path}", "a data file")
            if client in clients:
                raise DataError.of(
                    "client_files(folder=...)",
                    f"two files of {client!r}",
                    "one file for each client",
                )
            if ending == ".npz":
                clients[client] = _read_npz_client(path, schema)
            else:
                clients[client] = schema(path, TABLES[ending](path, schema))
    return {client: clients[client] for client in sorted(clients, key=natural)}


def _warn_of_unread(folder: Path, train_folder: Path) -> None:
    """Warns of data files in the folder that are no part of the data."""
    unread: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name in ("train", "test", "validation") or path.name.startswith("."):
            continue
        if os.path.isdir(path):
            # a folder that may not be read is none of the data's
            with contextlib.suppress(OSError):
                unread += [f"{path.name}/"] if any(map(_is_data_file, path.iterdir())) else []
        elif train_folder != folder and _is_data_file(path):
            unread.append(path.name)
    if unread:
        names = ", ".join(unread[:5]) + (f" and {len(unread) - 5} more" if unread[5:] else "")
        warnings.warn(
            f"client_files(folder=...): not read in {folder}: {names}. The parts are the folders "
            "train, test and validation.",
            stacklevel=2,
        )


def _is_data_file(path: Path) -> bool:
    return split_ending(path)[1] in (".npz", *TABLES) and os.path.isfile(path)


def _read_npz_client(path: Path, schema: Columns) -> Labelled:
    label, arrays = schema.label, dict(schema.select(read_npz(path).items()))
    for key, values in arrays.items():
        if not values.ndim:
            raise DataError.found(
                path.name,
                f"the scalar {key!r}",
                "arrays of one row per example",
                f"The file is {path}.",
            )
    if label != "y" and "y" in check_label(path, label, arrays):
        raise DataError.found(
            path.name,
            f"the array 'y' beside the labels {label!r}",
            "one array of labels",
            f"Leave one out: drop=['y'], or drop=[{label!r}]. The file is {path}.",
        )
    return {("y" if key == label else key): values for key, values in arrays.items()}


def _read_csv(path: Path, schema: Columns) -> dict[str, Any]:
    with reading(path, "a header of different names, and rows of as many numbers"):
        header, *rows = list(
            csv.reader(io.StringIO(read_whole(path).decode("utf-8-sig"), newline=""))
        ) or [[]]
        if not header:
            raise ValueError("no header in the first line")
        # without empty lines
        rows = [row for row in rows if row]
        for row in rows:
            if len(row) != len(header):
                raise ValueError(
                    f"{len(row)} fields in the row {', '.join(row)[:60]!r} under "
                    f"{len(header)} headings"
                )
        header = schema.headings(path, header)
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    selected = dict(schema.select(zip(header, columns)))
    schema.owners = selected.get(str(schema.client))
    return {name: schema.convert(path, name, cells) for name, cells in selected.items()}


def _read_parquet(path: Path, schema: Columns) -> dict[str, Any]:
    parquet = import_extra("pyarrow.parquet", "parquet", path.name)
    allowed = "a Parquet table of numbers"
    with reading(path, allowed):
        table = parquet.read_table(path)
        # pandas writes the index of a frame as columns
        index = (table.schema.pandas_metadata or {}).get("index_columns", ())
        stored = [name for name in index if isinstance(name, str) and name != schema.client]
        table = table.drop_columns(stored)
    with reading(path, allowed):
        return _read_frame(path, schema, table, table.column_names)


def _read_frame(path: Path, schema: Columns, table: Any, keys: Sequence[Any]) -> dict[str, Any]:
    """Returns the columns of a table of Arrow, or of a frame of pandas.

    Args:
        path, schema: of the table.
        table: gives a column by its key.
        keys: of all columns: their names as text, or other values, such as numbers in frames.
    """
    allowed = "a table of numbers"
    names = schema.headings(path, keys)
    columns = {
        name: table[key].to_numpy() for name, key in schema.select(zip(names, keys, strict=True))
    }
    for column, values in columns.items():
        if values.dtype.kind in "mM":
            raise DataError.found(
                path.name, f"dates in the column {column!r}", allowed, f"Pass drop=[{column!r}]."
            )
    schema.owners = columns.get(str(schema.client))
    # numbers stay in arrays, unless they stand for texts or name clients
    texts = {column for column, values in columns.items() if values.dtype.kind not in "fiub"} | {
        *schema.words,
        schema.client,
    }
    return {
        column: schema.convert(path, column, values.tolist() if column in texts else values)
        for column, values in columns.items()
    }


TABLES: dict[str, Callable[..., dict[str, Any]]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
"""Readers of columns, by a file's ending: of a path, and the `Columns` that say which.

Columns are arrays of numbers, but for the names of clients, which stay as they are.
"""
