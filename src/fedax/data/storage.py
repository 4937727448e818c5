"""Clients' examples in NumPy files that are read on demand: populations larger than memory."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedax.core import DataError
from fedax.data.folder import reading
from fedax.examples.arrays import as_ndarray
from fedax.examples.encoding import Encoding
from fedax.examples.federated import MANY, FederatedData, make_part
from fedax.examples.memmap import BLOCK
from fedax.examples.ragged import Ragged, count_rows, offsets_of

ABOUT = "about.json"
SIZES = "sizes.npy"
"""Ending of the file with the number of examples of each client of a part."""


def store(
    folder: str | Path,
    clients: Iterable[Any] | FederatedData,
    *,
    test: Iterable[Any] | None = None,
    validation: Iterable[Any] | None = None,
    central: Any = None,
    classes: int | None = None,
    name: str | None = None,
    names: Sequence[str] | None = None,
) -> Path:
    """Writes clients' examples one after the other into a folder, for `stored`.

    The folder has one `.npy` file for each array of all clients, their examples in client order.
    Real numbers are written in JAX's default float type, labels of classes as 32-bit numbers. The
    folder appears when everything is written; a client is in memory while it is written only.

    Args:
        folder: new.
        clients: as in `FederatedData.from_arrays`: any iterable, such as a generator, of the arrays
            of each client, a mapping by the names of the clients, or `FederatedData`, written with
            all their parts and under their own name.
        test: the same for test examples, in the same client order; a client may have none.
        validation: as `test`.
        central: the arrays of a test set that belongs to no client, or None.
        classes: how many; None for data without labels of classes.
        name: for tables and messages; that of the folder by default.
        names: of the clients, in their order.

    Returns:
        The folder.

    Raises:
        DataError: what `FederatedData` refuses, an array whose name is no identifier, or a folder
            that is there already; nothing is left behind then.

    Example:
        >>> import tempfile
        >>> rng = np.random.default_rng(0)
        >>> people = ({"x": rng.normal(size=(3, 5)), "y": [0, 1, 1]} for _ in range(1000))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = stored(store(Path(folder) / "people", people, classes=2))
        ...     print(data.clients, data.sizes.sum(), type(data.train[0]["x"]).__name__)
        1000 3000 memmap
    """
    folder = Path(folder).expanduser()
    if folder.exists():
        raise DataError.of("folder", str(folder), "a folder that is not there yet")
    if isinstance(clients, Mapping | FederatedData):
        clients = FederatedData.from_arrays(
            clients,
            test=test,
            validation=validation,
            central=central,
            classes=classes,
            name=name or folder.name,
        )
    about: dict[str, Any] = {"classes": classes, "name": name or folder.name, "names": names}
    parts: dict[str, Any] = {"train": clients, "validation": validation, "test": test}
    unseen = None
    if isinstance(clients, FederatedData):
        about = {key: getattr(clients, key) for key in _ABOUT} | {"gap": clients.train.gap}
        if clients.encoding is not None:
            about["encoding"] = clients.encoding.to_json()
        parts = dict(clients.parts)
        central = clients.central
        unseen = clients.unseen
    parts["central"] = None if central is None else [central]
    # a folder beside, renamed when it is whole: readers never see half of it
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        like: Ragged | None = None
        for part, part_clients in parts.items():
            if part_clients is not None:
                like = _write_part(draft / part, part_clients, about, like)
        if unseen is not None:
            store(draft / "unseen", unseen)
        (draft / ABOUT).write_text(json.dumps(about, default=list), encoding="utf-8")
        # the parts have to fit each other
        stored(draft)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return folder


_ABOUT = ("classes", "name", "names", "labels", "encoding", "plain", "measured")


def stored(folder: str | Path) -> FederatedData:
    """Opens the clients of a folder that `store` wrote, memory-mapped.

    Examples are read when they are needed. What changes all examples, such as `with_validation`,
    has them all in memory.

    Args:
        folder: see `store`.

    Raises:
        DataError: no such folder, or files that are missing, cut off or do not fit each other.
    """
    folder = Path(folder).expanduser()
    with reading(folder, "a folder that fedax.data.store wrote"):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        # of windows of a text
        gap = about.pop("gap", 1)
        parts: dict[str, Any] = {
            part: _read_part(folder / part, gap)
            for part in ("train", "validation", "test", "central")
            if (folder / part).is_dir()
        }
    if "central" in parts:
        parts["central"] = dict(parts["central"].arrays)
    if (folder / "unseen").is_dir():
        parts["unseen"] = stored(folder / "unseen")
    if about.get("encoding") is not None:
        about["encoding"] = Encoding.from_json(about["encoding"])
    return FederatedData(**parts, **about)


def _write_part(
    folder: Path, clients: Iterable[Any], about: dict[str, Any], like: Ragged | None
) -> Ragged:
    """Writes one part, block by block, and notes in `about` whether examples have no names.

    Returns:
        Examples of the arrays' shapes and types: `like`, or the first block.
    """
    folder.mkdir(parents=True)
    files: dict[str, BinaryIO] = {}
    sizes: list[int] = []
    allow_empty = folder.name in ("validation", "test")
    with contextlib.ExitStack() as stack:
        for block in _blocks(clients):
            where = f"{folder.name}, clients from {len(sizes)}"
            about.setdefault("plain", not isinstance(block[0], Mapping))
            part = make_part(block, where, about["classes"], like, allow_empty)
            like = like or part
            for name, values in part.arrays.items():
                if name not in files:
                    if not name.isidentifier():
                        raise DataError.of(where, name, "identifiers as names of arrays")
                    files[name] = stack.enter_context((folder / f"{name}.npy").open("xb"))
                    # has room for the number of rows, which is not known yet
                    _write_head(files[name], values, 0)
                files[name].write(np.asarray(values).tobytes())
            sizes += part.sizes.tolist()
        if like is None or not sizes:
            raise DataError.found(folder.name, "no client", "at least one client")
        for name, file in files.items():
            file.seek(0)
            _write_head(file, like.arrays[name], sum(sizes))
    np.save(folder.with_name(f"{folder.name}.{SIZES}"), np.array(sizes, np.int64))
    return like


def _write_head(file: BinaryIO, values: Any, rows: int) -> None:
    head = {"descr": values.dtype.str, "fortran_order": False, "shape": (rows, *values.shape[1:])}
    np.lib.format.write_array_header_1_0(file, head)


def _blocks(clients: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields lists of clients that are checked and written together."""
    block: list[Any] = []
    total = 0
    for client in clients:
        block.append(client)
        arrays = client.values() if isinstance(client, Mapping) else [client]
        total += sum(as_ndarray(values, "client").nbytes for values in arrays)
        # whichever is reached first, for few large clients and for many small ones
        if total > BLOCK or len(block) == MANY:
            yield block
            block = []
            total = 0
    if block:
        yield block


def _read_part(folder: Path, gap: int) -> Ragged:
    sizes = np.load(folder.with_name(f"{folder.name}.{SIZES}"))
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}
    offsets = offsets_of(sizes)
    if count_rows(arrays, str(folder)) != offsets[-1]:
        raise DataError.found(str(folder), f"arrays of other lengths than {SIZES} says", "the same")
    return Ragged(arrays, offsets, len(sizes), int(sizes.max()), gap)
