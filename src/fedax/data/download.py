"""Downloads of data sets, with a progress bar; files are verified before they are stored."""

import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from fedax.core import DataError
from fedax.data import MissingFile, data_folder
from fedax.data.folder import verify
from fedax.data.registry import DataSet
from fedax.utils.files import writing

CHUNK = 1 << 18
MOST_UNPACKED = 1 << 32
"""Limit of the bytes that an archive unpacks to."""


def prepare(name: str, data_set: DataSet, folder: Path | None, console: Console) -> str:
    """Downloads and verifies the files of a data set; returns its state as a sentence.

    Existing files are read, which verifies their content. Missing ones are fetched into a temporary
    folder beside their destination, read there, and moved only if their content is right.

    Args:
        name: of the data set, for messages.
        data_set: the data set.
        folder: the data folder; see `fedax.data.data_folder`.
        console: where progress is shown.

    Raises:
        DataError: files are broken, cannot be fetched, or differ from the published ones; nothing
            is stored then.
    """
    if not data_set.local:
        return "nothing to prepare: it reads no file of the data folder"
    destination = data_folder(folder)
    missing = _find_missing(data_set, destination)
    if missing is None:
        return f"ready and verified in {destination}"
    if not data_set.files:
        raise missing
    with writing(destination):
        destination.mkdir(parents=True, exist_ok=True)
        _download(name, data_set, destination, console)
    return f"fetched and verified in {destination}"


def _download(name: str, data_set: DataSet, destination: Path, console: Console) -> None:
    # inside the destination, so that files move within one file system
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=destination) as staging:
        _fetch_files(name, data_set, Path(staging), console)
        # reads what was fetched, and so verifies it
        still_missing = _find_missing(data_set, Path(staging))
        if still_missing is not None:
            raise still_missing
        for path in sorted(Path(staging).iterdir()):
            shutil.copytree(
                path, destination / path.name, dirs_exist_ok=True
            ) if path.is_dir() else path.replace(destination / path.name)


def _find_missing(data_set: DataSet, destination: Path) -> MissingFile | None:
    """Returns the error of a missing file, or None; raises any other error."""
    try:
        data_set.make(folder=destination / data_set.within, **data_set.light)
    except MissingFile as error:
        return error
    return None


def _fetch_files(name: str, data_set: DataSet, staging: Path, console: Console) -> None:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console) as progress:
        for relative, address in data_set.files.items():
            target = staging / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            _fetch(name, address, target, progress, progress.add_task(target.name, total=None))
            if relative.endswith(".tar.gz"):
                if relative in data_set.archives:
                    verify(name, data_set.archives[relative], [target.read_bytes()], target)
                _unpack(name, target, staging)


def _fetch(name: str, address: str, target: Path, progress: Progress, bar: TaskID) -> None:
    try:
        with urllib.request.urlopen(address, timeout=30) as source, target.open("wb") as sink:
            size = source.headers.get("Content-Length")
            progress.update(bar, total=int(size) if size else None)
            while chunk := source.read(CHUNK):
                sink.write(chunk)
                progress.advance(bar, len(chunk))
            received = sink.tell()
    except (OSError, http.client.HTTPException) as error:
        # no network, no such host or file, a connection that breaks
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # a response such as 404 keeps its connection open
        hint = f"Without a network, put {target.name} into the data folder yourself."
        raise DataError.of(
            name, f"no answer from {address} ({reason})", "a file that can be fetched", hint
        ) from error
    if size and received != int(size):
        raise DataError.of(
            name,
            f"{received} of {size} bytes from {address}",
            "the whole file",
            "Run the command again.",
        )


def _unpack(name: str, archive: Path, staging: Path) -> None:
    """Unpacks the plain files of an archive.

    Refuses links and names that lead out of the folder.
    """
    remaining = MOST_UNPACKED
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isdir():
                    continue
                name_inside = PurePosixPath(member.name)
                if not member.isreg() or name_inside.is_absolute() or ".." in name_inside.parts:
                    raise DataError.of(
                        name,
                        f"the entry {member.name!r} in {archive.name}",
                        "plain files inside of the archive",
                    )
                remaining -= member.size
                if remaining < 0:
                    raise DataError.of(
                        name,
                        f"{archive.name} with more than {MOST_UNPACKED} bytes",
                        f"{MOST_UNPACKED} bytes unpacked",
                    )
                target = staging / name_inside
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as sink:
                    shutil.copyfileobj(cast(IO[bytes], tar.extractfile(member)), sink)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError.of(
            name, f"an archive that cannot be unpacked ({error})", "a whole .tar.gz file"
        ) from error
    archive.unlink()
