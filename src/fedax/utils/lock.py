"""Locks of folders between processes."""

import contextlib
from collections.abc import Generator
from pathlib import Path

from filelock import FileLock, Timeout

from fedax.errors import RunExists
from fedax.utils.files import writing

LOCK = ".lock"
"""The file of a folder's lock, which stays."""


@contextlib.contextmanager
def held(folder: Path, name: str = LOCK) -> Generator[None]:
    """Holds the lock of a folder, which it makes, or of one piece of work in it by another name.

    The system releases it when the process ends, however it ends.

    Raises:
        RunExists: another process holds it.
        WriteFailed: a folder that is read-only, for example.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            acquired = FileLock(folder / name).acquire(blocking=False)
        except Timeout as error:
            hint = "Wait until it ends, or choose another folder."
            raise RunExists(f"{folder} is in use by another process. {hint}") from error
    with acquired:
        yield


def is_held(folder: Path) -> bool:
    """Returns whether a process holds the lock of a folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with held(folder):
            return False
    except RunExists:
        return True
