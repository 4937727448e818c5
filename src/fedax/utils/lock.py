"""Locks of folders and files between processes."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Generator
from pathlib import Path

from fedax.errors import RunExists

_NAME = ".lock"


@contextlib.contextmanager
def held(folder: Path, name: str = _NAME) -> Generator[None]:
    """Holds the lock of a folder that exists, or of one piece of work in it by another name.

    The system gives it up when the process ends, however it ends.

    Where the file system has no locks, there is none.

    Raises:
        RunExists: another process holds it; the message says which, where and since when.
    """
    path = folder / name
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if not _take(handle):
            process = _read_holder(handle)
            os.close(handle)
            raise RunExists(
                f"{folder} is in use by {process}. Wait until it ends, or choose another folder."
            )
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        os.close(handle)  # the one that held it has just removed the file
    os.ftruncate(handle, 0)
    os.write(
        handle,
        f"process {os.getpid()} on {socket.gethostname()}, since "
        f"{time.strftime('%Y-%m-%d %H:%M:%S')}".encode(),
    )
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(handle)


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Holds a lock file, which is made if it is missing.

    Other processes and threads wait until the block ends. The system releases the lock when its
    process ends, however it ends. On a file system without locks there is none.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(handle, wait=True)
        yield
    finally:
        os.close(handle)


def holder(folder: Path) -> str | None:
    """Returns the process that holds the lock of a folder, in words; None if none does."""
    try:
        handle = os.open(folder / _NAME, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if _take(handle) else _read_holder(handle)
    finally:
        os.close(handle)


def _read_holder(handle: int) -> str:
    os.lseek(handle, 0, os.SEEK_SET)
    return os.read(handle, 300).decode("utf-8", "replace") or "another process"


def _take(handle: int, wait: bool = False) -> bool:
    """Takes the lock of an open file if it is free, or waits until it is."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1000, os.SEEK_SET)  # a byte beyond the text
            msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True
