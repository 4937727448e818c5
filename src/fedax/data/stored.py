"""Clients' examples in NumPy files that are read on demand: populations larger than memory."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import numpy as np

from fedax.core import DataError
from fedax.core.task import offsets_of
from fedax.data.client_forms import describe, match_clients, named_clients
from fedax.data.federated import (
    MANY,
    MOST_CLASSES,
    ColumnOrder,
    FederatedData,
    Labelled,
    align_columns,
)
from fedax.data.folder import MissingFile, reading
from fedax.data.limits import checked
from fedax.errors import is_printable
from fedax.examples.arrays import as_array, canonical
from fedax.examples.client_names import ClientNames
from fedax.examples.memmap import BLOCK
from fedax.examples.ragged import Stacked

ABOUT, NAMES = "about.json", "names.json"
SIZES = "sizes"
"""The file with the number of examples of each client, beside those of the arrays."""
FORM = 1
MOST_NAME = 200
"""Bytes of an array's name, which is that of its file without the ending."""


@checked()
def write_clients(
    folder: str | Path,
    clients: Iterable[Any] | FederatedData,
    classes: int | None = None,
    *,
    test: Iterable[Any] | None = None,
    central: Any = None,
    name: str | None = None,
    names: Sequence[str] | None = None,
) -> Path:
    """Writes clients' examples one after the other into a folder, for `stored_clients`.

    The folder has one `.npy` file for each array of all clients, their examples in client order,
    and `sizes.npy` with how many each has. Real numbers are written in JAX's default float type,
    others as they are, labels as 32-bit numbers. The folder appears when everything is written; a
    client is in memory while it is written only.

    Args:
        folder: new.
        clients: any iterable, such as a generator, of `{"x": (n_k, ...), "y": (n_k,)}`, at least
            one example each, all with the same names and shapes of an example. Columns of data
            frames are matched by name. Further arrays reach the task's loss with them. Or a dict
            of these by the names of the clients, or `FederatedData`, written with all their parts
            and names.
        classes: labels are whole numbers from 0 to classes - 1; at least 1. Not for
            `FederatedData`, which know it.
        test: the same for test examples, in the same client order; a client may have none.
        central: a test set that belongs to no client, or None.
        name: for tables and messages; that of the folder by default.
        names: of the clients, in their order; those of `FederatedData` by default.

    Returns:
        The folder.

    Raises:
        DataError: what `FederatedData` refuses, an array whose name cannot be that of its file, or
            a folder that is there already; nothing is left behind then.

    Example:
        >>> import tempfile
        >>> rng = np.random.default_rng(0)
        >>> people = ({"x": rng.normal(size=(3, 5)), "y": [0, 1, 1]} for _ in range(1000))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = stored_clients(write_clients(Path(folder) / "people", people, classes=2))
        ...     print(data.clients, data.sizes.sum(), type(data.train[0]["x"]).__name__)
        1000 3000 memmap
    """
    folder = Path(folder).expanduser()
    validation, columns, categories = None, None, None
    if isinstance(clients, FederatedData):
        if not (classes is None and test is None and central is None):
            raise DataError.found(
                "write_clients", "FederatedData, and classes or parts beside", "one of both"
            )
        data, clients = clients, clients.train
        classes, test, central, name = data.classes, data.test, data.central, name or data.name
        validation, columns, categories = data.validation, data.columns, data.categories
        names = data.names if names is None else names
    names = None if names is None else ClientNames(names)
    if isinstance(clients, Mapping):
        by_name = named_clients(clients, "train")
        if names is not None and list(names) != list(by_name):
            allowed = "None for clients by name"
            raise DataError.of(
                "write_clients(names=...)", list(names), allowed, "Their names are the keys."
            )
        if test is not None and not isinstance(test, Mapping):
            allowed = "a dict of the clients' names, as the clients are"
            raise DataError.found("write_clients(test=...)", describe(test), allowed)
        clients, names = list(by_name.values()), ClientNames(by_name)
    # a part by name needs the clients at hand, which a generator does not have
    if isinstance(test, Mapping) and isinstance(clients, Sequence):
        test = match_clients(test, clients, names, "test")
    for part, values in (("clients", clients), ("test", test)):
        is_iterable = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
        if not is_iterable and not (part == "test" and values is None):
            allowed = "FederatedData, or a list or generator of the arrays of each client"
            raise DataError.found(f"write_clients({part}=...)", describe(values), allowed)
    if not isinstance(classes, int | np.integer) or not 1 <= classes <= MOST_CLASSES:
        raise DataError.of(
            "write_clients(classes=...)", classes, f"whole numbers from 1 to {MOST_CLASSES}"
        )
    if folder.exists():
        raise DataError.of(
            "write_clients(folder=...)", str(folder), "a folder that is not there yet"
        )
    splits: dict[str, Any] = {
        "train": clients,
        "test": test,
        "validation": validation,
        "central": None if central is None else [central],
    }
    # columns of data frames in one order, in all parts
    frames = ColumnOrder()
    # a folder beside, renamed when it is whole: readers never see half of it
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        specs: dict[str, Any] = {}
        count = None
        for split, split_clients in splits.items():
            if split_clients is None:
                continue
            # all parts have the shapes and types of the training examples
            specs["train"], written = _write_split(
                draft / split, split, split_clients, classes, specs.get("train"), frames
            )
            count = written if count is None else count
            if split == "test" and written != count:
                raise DataError.found(
                    "write_clients(test=...)", f"{written} clients", f"{count} clients, as in train"
                )
        if names is not None:
            if len(names) != count:
                raise DataError.of(
                    "write_clients(names=...)",
                    f"{len(names)} names",
                    f"{count}, one for each client",
                )
            (draft / NAMES).write_text(json.dumps([*names]), encoding="utf-8")
        about = {
            "form": FORM,
            "classes": int(classes),
            "name": name or folder.name,
            "clients": count,
        }
        # columns of data frames are known once the clients have been read
        columns = frames.names if columns is None else columns
        if columns is not None:
            about["columns"] = list(columns)
        if categories is not None:
            about["categories"] = {column: list(texts) for column, texts in categories.items()}
        (draft / ABOUT).write_text(json.dumps(about), encoding="utf-8")
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return folder


@checked()
def stored_clients(folder: str | Path) -> FederatedData:
    """Opens the clients of a folder that `write_clients` wrote, memory-mapped.

    Examples are read when they are needed. What changes all examples, such as `with_validation`,
    has them all in memory.

    Args:
        folder: see `write_clients`.

    Raises:
        DataError: no such folder, or files that are missing, cut off or do not fit each other.
    """
    folder = Path(folder).expanduser()
    if not os.path.isfile(folder / ABOUT):
        hint = "fedax.data.write_clients writes one."
        raise MissingFile.found(
            "stored_clients(folder=...)",
            f"no {ABOUT} in {folder}",
            "a folder of stored clients",
            hint,
        )
    with reading(folder / ABOUT, "a whole file"):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        version, classes, name, clients = (
            about["form"],
            int(about["classes"]),
            str(about["name"]),
            int(about["clients"]),
        )
        # folders of earlier versions have neither
        columns, categories = about.get("columns"), about.get("categories")
        columns = None if columns is None else [str(column) for column in columns]
        if categories is not None:
            categories = {
                str(column): [str(text) for text in texts] for column, texts in categories.items()
            }
    if version != FORM:
        raise DataError.of(
            f"{folder / ABOUT}: form", version, f"{FORM}, which this version of fedax reads"
        )
    test, validation, central = (
        _read_split(folder / split, count) if (folder / split).is_dir() else None
        for split, count in (("test", clients), ("validation", clients), ("central", 1))
    )
    return FederatedData(
        _read_split(folder / "train", clients),
        classes,
        test,
        None if central is None else dict(central[0]),
        name,
        validation,
        names=_stored_names(folder),
        columns=columns,
        categories=categories,
    )


def _stored_names(folder: Path) -> list[str] | None:
    if not (folder / NAMES).is_file():
        return None
    with reading(folder / NAMES, "a whole file"):
        return [str(name) for name in json.loads((folder / NAMES).read_text(encoding="utf-8"))]


def _write_split(
    folder: Path,
    split: str,
    clients: Iterable[Labelled],
    classes: int,
    specs: Any,
    frames: ColumnOrder,
) -> tuple[Any, int]:
    """Writes one part; returns the arrays' shapes and types, and the number of clients.

    Shapes and types are those of an example, which all clients have. `frames` is the order of the
    columns of data frames in all parts.
    """
    folder.mkdir(parents=True)
    columns: dict[str, _Column] = {}
    sizes: list[np.ndarray] = []
    written = 0
    try:
        for block in _client_blocks(clients):
            # the order of columns outlives a block of clients
            block = [
                align_columns(frames, client, f"{split}[{written + k}]")
                for k, client in enumerate(block)
            ]
            stacked = _check_block(block, split, written, classes)
            block_specs = {key: (v.shape[1:], v.dtype.str) for key, v in stacked.arrays.items()}
            specs = block_specs if specs is None else specs
            if block_specs != specs:
                raise DataError.of(
                    f"{split}[{written}]", block_specs, f"{specs}, as the first client has"
                )
            if not columns:
                _check_array_names(block_specs, split)
            columns = columns or {
                key: _Column(folder / f"{key}.npy", *spec) for key, spec in block_specs.items()
            }
            for key, values in stacked.arrays.items():
                columns[key].add(values)
            sizes.append(stacked.sizes)
            written += len(block)
        if not written:
            raise DataError.found(split, "no client", "at least one client")
        # refuses more examples than can be counted
        offsets_of(np.concatenate(sizes))
    finally:
        for column in columns.values():
            column.close()
    with (folder / f"{SIZES}.npy").open("xb") as file:
        np.save(file, np.concatenate(sizes))
    return specs, written


def _check_array_names(names: Iterable[Any], split: str) -> None:
    """Refuses names of arrays that cannot be names of files, before any file is opened."""
    for name in names:
        is_plain = (
            isinstance(name, str)
            and name not in ("", ".", "..")
            # neither a path nor a drive, on any system
            and name == PurePosixPath(name).name == PureWindowsPath(name).name
            and is_printable(name)
            and len(name.encode()) <= MOST_NAME
        )
        if not is_plain or name == SIZES:
            allowed = (
                f"text that can be the name of a file, of at most {MOST_NAME} bytes, other than "
                f"{SIZES!r}, the file with the number of examples of each client"
            )
            raise DataError.of(
                f"{split}[...], name of an array", name, allowed, "Rename the array."
            )


def _client_blocks(clients: Iterable[Labelled]) -> Iterator[list[Labelled]]:
    """Yields lists of clients that are checked and written together."""
    block: list[Labelled] = []
    total = 0
    for client in clients:
        block.append(client)
        total += (
            sum(as_array(v, f"...[{k!r}]").nbytes for k, v in client.items())
            if isinstance(client, Mapping)
            else 0
        )
        # whichever is reached first, for few large clients and for many small ones
        if total > BLOCK or len(block) == MANY:
            yield block
            block, total = [], 0
    if block:
        yield block


def _check_block(block: list[Labelled], split: str, begin: int, classes: int) -> Stacked:
    """Returns the arrays of some clients as they are written.

    `FederatedData` checks them, and names the first that does not fit.
    """
    # a client may have no test examples, but `FederatedData` wants some to train on
    with_examples = block if split == "train" else [_with_example(client) for client in block]
    try:
        FederatedData(with_examples, classes)
    except DataError as error:
        raise DataError(
            # the client's number among all, not in the block
            re.sub(r"train\[(\d+)\]", lambda match: f"{split}[{begin + int(match[1])}]", str(error))
        ) from error
    stacked = Stacked.of(block)
    assert stacked is not None, "looked at"
    arrays = {
        key: canonical(v.astype(np.int32) if key == "y" else v, f"{split}[...][{key!r}]")
        for key, v in stacked.arrays.items()
    }
    return Stacked(arrays, stacked.sizes)


def _with_example(client: Labelled) -> Labelled:
    """Returns the client, with an example of zeros if it has none."""
    if not isinstance(client, Mapping) or any(len(values) for values in client.values()):
        return client
    arrays = {key: np.asarray(values) for key, values in client.items()}
    return {key: np.zeros((1, *v.shape[1:]), v.dtype) for key, v in arrays.items()}


class _Column:
    """A `.npy` file that grows."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype, self.rows = shape, dtype, 0
        # never over another file, which a file system that ignores capitals may have for the name
        self.file: BinaryIO = path.open("xb")
        self._write_head()

    def add(self, values: np.ndarray) -> None:
        self.rows += len(values)
        self.file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)

    def close(self) -> None:
        self.file.seek(0)
        self._write_head()
        self.file.close()

    def _write_head(self) -> None:
        """Writes the file's head, which has room for more rows than there can be."""
        head = {"descr": self.dtype, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, head)


def _read_split(folder: Path, clients: int) -> Stacked:
    with reading(folder, "whole .npy files"):
        sizes = np.load(folder / f"{SIZES}.npy", allow_pickle=False)
        names = sorted(path.stem for path in folder.glob("*.npy") if path.stem != SIZES)
        arrays = {
            key: np.load(folder / f"{key}.npy", mmap_mode="r", allow_pickle=False) for key in names
        }
    lengths = {key: len(values) for key, values in arrays.items()}
    if sizes.ndim != 1 or len(sizes) != clients or set(lengths.values()) != {int(sizes.sum())}:
        got = f"{len(sizes)} clients with {int(sizes.sum())} examples, and arrays of {lengths}"
        raise DataError.found(
            str(folder),
            got,
            f"{clients} clients, and as many rows of every array as they have examples",
        )
    return Stacked(arrays, sizes, finite=True)
