"""The folder of data files on this machine, and the check of their content."""

import contextlib
import gzip
import hashlib
import importlib
import os
import zipfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import DataError, FedaxError
from fedax.errors import install_hint


class MissingFile(DataError):
    """A data file or folder that is not there; the message says what to do."""


def data_folder(folder: str | Path | None = None) -> Path:
    """Returns the folder of data files.

    It is the argument, else the variable `FEDAX_DATA`, else `fedax` in the user's cache folder.

    The cache folder is `XDG_CACHE_HOME`, or `~/.cache` if that is not set. Nothing is created.

    >>> data_folder("files").name
    'files'
    """
    if folder is not None:
        return Path(folder).expanduser()
    configured = os.environ.get("FEDAX_DATA")
    if configured:
        return Path(configured).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedax"


def data_file(name: str, folder: str | Path | None, how: str, others: Sequence[str] = ()) -> Path:
    """Returns the path of a data file that exists.

    Args:
        name: of the file.
        folder: as in `data_folder`.
        how: one sentence on how to get the file, for the message.
        others: names that are looked for as well, in this order.

    Raises:
        MissingFile: no such file; the message names the path that was looked at and the ways to
            name another.
    """
    paths = [data_folder(folder) / file_name for file_name in (name, *others)]
    for path in paths:
        if os.path.isfile(path):  # unlike the method, False also for a name that no file can have
            return path
    hint = f"{how} Another folder is named by `folder` or by the variable FEDAX_DATA."
    raise MissingFile.of(name, f"no file at {paths[0]}", "a readable data file there", hint)


MOST_BYTES = 1 << 32
"""Of a data file, packed and unpacked."""


def import_extra(package: str, extra: str, owner: str) -> Any:
    """Imports a package that an extra of fedax installs.

    Raises:
        DataError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DataError.of(
            owner, f"no package {package}", "an installed one", f"Run: {install_hint(extra)}"
        ) from error


@contextlib.contextmanager
def reading(path: Path, allowed: str, how: str = "") -> Generator[None]:
    """Turns errors while a file is read into a `DataError` that names the file.

    Args:
        path: of the file.
        allowed: what it should be.
        how: a sentence on how to get it.
    """
    try:
        yield
    except FedaxError:
        raise
    except Exception as error:  # zip, JSON, codecs, other libraries: any layer below can fail
        got = f"a file at {path} that cannot be read ({str(error) or type(error).__name__})"
        raise DataError.of(path.name, got, allowed, how) from error


def read_whole(path: Path, how: str = "") -> bytes:
    """Reads a file, unpacked if it is gzipped; at most `MOST_BYTES`.

    Raises:
        DataError: no plain file (a pipe or device would never end), one that is too large or
            unreadable, or a gzip file that is truncated or damaged; the message names the path.
    """
    with reading(path, "a whole file", how):
        if path.exists() and not path.is_file():
            raise DataError.of(path.name, f"no plain file at {path}", "a data file", how)
        with path.open("rb") as raw:
            # the mark of gzip, whatever the name says
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.open(raw) if packed else raw as source:
                # a byte more tells that there is more
                content = source.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DataError.of(
            path.name,
            f"more than {MOST_BYTES} bytes in {path}",
            f"at most {MOST_BYTES} bytes, unpacked",
            how,
        )
    return content


def read_npz(path: Path, how: str = "") -> dict[str, np.ndarray]:
    """Reads the arrays of an `.npz` archive; at most `MOST_BYTES` unpacked.

    Raises:
        DataError: no plain file, or an archive that is too large or damaged; the message names the
            path.
    """
    with reading(path, "a whole .npz archive", how):
        if not os.path.isfile(path):
            raise ValueError("no plain file")
        with zipfile.ZipFile(path) as archive:
            # before anything is unpacked
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MOST_BYTES:
            raise ValueError(f"{size} bytes unpacked; at most {MOST_BYTES} are read")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def verify(
    name: str, expected: str, content: Sequence[bytes | np.ndarray], path: Path, how: str = ""
) -> None:
    """Compares the SHA-256 of some content with the expected one, in hexadecimal.

    The content comes in parts, one after another.

    Raises:
        DataError: another content; the message names the path and both checksums.
    """
    digest = hashlib.sha256()
    for chunk in content:
        digest.update(chunk if isinstance(chunk, bytes) else np.ascontiguousarray(chunk).data)
    if digest.hexdigest() != expected:
        got = f"SHA-256 {digest.hexdigest()} of the content of {path}"
        raise DataError.of(
            name, got, f"the published data, SHA-256 {expected}", how or "Fetch the file again."
        )
