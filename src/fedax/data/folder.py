"""The folder of data files on this machine, and the check of their content."""

import contextlib
import gzip
import hashlib
import io
import os
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from fedax.core import DataError, FedaxError
from fedax.utils.files import read


class MissingFile(DataError):
    """A data file or folder that is not there; the message says what to do."""


def data_folder(folder: str | Path | None = None) -> Path:
    """Returns the folder of data files.

    It is the argument, else the variable `FEDAX_DATA`, else `fedax` in the user's cache folder.

    The cache folder is `XDG_CACHE_HOME`, or `~/.cache` if that is not set. Nothing is created.

    >>> data_folder("files").name
    'files'
    """
    configured = folder or os.environ.get("FEDAX_DATA")
    if configured:
        return Path(configured).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedax"


def data_file(folder: str | Path | None, how: str, *names: str) -> Path:
    """Returns the path of the first data file that exists.

    Args:
        folder: as in `data_folder`.
        how: one sentence on how to get the file, for the message.
        names: that are looked for, in this order.

    Raises:
        MissingFile: no such file; the message names the path that was looked at first.
    """
    paths = [data_folder(folder) / name for name in names]
    for path in paths:
        if os.path.isfile(path):  # unlike the method, False also for a name that no file can have
            return path
    hint = f"{how} Another folder is named by `folder` or by the variable FEDAX_DATA."
    raise MissingFile.of(names[0], f"no file at {paths[0]}", "a readable data file there", hint)


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


def read_whole(path: Path) -> bytes:
    """Reads a file, unpacked if it is gzipped.

    Raises:
        InvalidInput: no plain file (a pipe or device would never end), or one that cannot be read.
    """
    with reading(path, "a whole file"):
        content = read(path)
        # the mark of gzip, whatever the name says
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an `.npz` archive.

    Raises:
        DataError: no plain file, or a damaged archive; the message names the path.
    """
    with (
        reading(path, "a whole .npz archive"),
        np.load(io.BytesIO(read(path)), allow_pickle=False) as file,
    ):
        return {name: file[name] for name in file.files}


def verify(name: str, expected: str, content: Sequence[bytes | np.ndarray], path: Path) -> None:
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
        allowed = f"the published data, SHA-256 {expected}"
        raise DataError.of(name, got, allowed, "Fetch the file again.")
