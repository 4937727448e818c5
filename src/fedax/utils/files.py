"""Files that are either whole or not there."""

import contextlib
import os
import stat
import tempfile
import unicodedata
from collections.abc import Generator
from pathlib import Path

from fedax.errors import InvalidInput, WriteFailed

_DEVICES = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{n}" for port in ("com", "lpt") for n in range(10)),
}


def portable(name: str, otherwise: str = "unnamed") -> str:
    """Returns a name that a file or folder may have on Linux, macOS and Windows.

    At most 120 bytes of letters, digits, `_` and `-`.

    `otherwise` if nothing is left.

    >>> portable("train/loss"), portable("CON"), portable("a.b: <c>?"), portable("..")
    ('train-loss', 'CON-', 'a-b-c', 'unnamed')
    """
    composed = unicodedata.normalize("NFC", name)
    plain = "-".join("".join(c if c.isalnum() or c in "_-" else " " for c in composed).split())
    plain = plain.encode()[:120].decode(errors="ignore").strip("-") or otherwise
    return f"{plain}-" if plain.casefold() in _DEVICES else plain


MOST_BYTES = 1 << 32
"""The largest file that `read` takes."""


def read(path: Path, most: int = MOST_BYTES) -> bytes:
    """Reads a regular file whole.

    Args:
        path: of the file.
        most: the most bytes.

    Raises:
        OSError: it cannot be read.
        InvalidInput: a pipe, a device or a folder, which could block or never end, or a file of
            more bytes.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput.because(str(path), "not a regular file")
        if status.st_size > most:
            raise InvalidInput.found(str(path), f"{status.st_size:,} bytes", f"at most {most:,}")
        return stream.read()


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Reads a regular file of UTF-8 text whole; see `read`."""
    return read(path, most).decode("utf-8")


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Turns errors of the system into `WriteFailed`, with the file and the reason.

    Such as a full disk, or a folder that is read-only.
    """
    try:
        yield
    except OSError as error:
        raise WriteFailed(
            f"{error.filename or path}: cannot be written: {error.strerror or error}."
        ) from error


def write(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Writes a file atomically.

    A reader, a crash or a loss of power sees the old content or the new one.

    Only the owner can read it before it has its `mode`, less the user's mask.

    The content goes to a hidden file beside it, is forced to the disk, and takes the name in one
    step.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, mode & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Forces a new name to the disk, where the system can do that for folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
