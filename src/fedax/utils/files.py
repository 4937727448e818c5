"""Files that are either whole or not there."""

import contextlib
import os
import re
import secrets
import unicodedata
from collections.abc import Generator
from pathlib import Path

from fedax.errors import InvalidInput, WriteFailed

OWNER = 0o600
"""Mode of a file that others may not read."""


def portable(name: str, otherwise: str = "unnamed") -> str:
    """Returns a name that a file or folder may have on every system.

    At most 120 bytes of letters, digits, `_` and `-`.

    `otherwise` if nothing is left.

    >>> portable("train/loss"), portable("a.b: <c>?"), portable("..")
    ('train-loss', 'a-b-c', 'unnamed')
    """
    plain = re.sub(r"[^\w-]+", "-", unicodedata.normalize("NFC", name))
    return plain.encode()[:120].decode(errors="ignore").strip("-") or otherwise


def read(path: Path) -> bytes:
    """Reads a regular file whole.

    Raises:
        OSError: it cannot be read.
        InvalidInput: a pipe, a device or a folder, which could block or never end.
    """
    if path.exists() and not path.is_file():
        raise InvalidInput.because(str(path), "not a regular file")
    return path.read_bytes()


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Turns errors of the system into `WriteFailed`, with the file and the reason.

    Such as a full disk, or a folder that is read-only.
    """
    try:
        yield
    except OSError as error:
        raise WriteFailed(f"{path}: cannot be written: {error.strerror or error}.") from error


def write(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Writes a file atomically, and makes its folder.

    A reader, a crash or a loss of power sees the old content or the new one.

    The content goes to a hidden file beside it, is forced to the disk, and takes the name in one
    step.

    Args:
        path: of the file.
        content: all of it.
        mode: who may read it, less the user's mask, such as `OWNER`.

    Raises:
        WriteFailed: a full disk, for example.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(
                temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)
            ) as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
