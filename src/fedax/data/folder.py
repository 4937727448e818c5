"""Where data files lie on this machine."""

import os
from pathlib import Path

from fedax.core import DataError


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder of data files: the argument, else the variable `FEDAX_DATA`, else `fedax` in the user's cache folder.

    The cache folder is `XDG_CACHE_HOME`, or `~/.cache` if that is not set. Nothing is created.

    >>> data_folder("files").name
    'files'
    """
    if folder is not None:
        return Path(folder).expanduser()
    named = os.environ.get("FEDAX_DATA")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedax"


def data_file(name: str, folder: str | Path | None, how: str) -> Path:
    """The path of a data file that exists.

    Args:
        name: of the file.
        folder: as in `data_folder`.
        how: one sentence on how to get the file, for the message.

    Raises:
        DataError: no such file; the message names the path that was looked at and the ways to name another.
    """
    path = data_folder(folder) / name
    if not path.is_file():
        hint = f"{how} Another folder is named by `folder` or by the variable FEDAX_DATA."
        raise DataError.of(name, f"no file at {path}", "a readable data file there", hint)
    return path
