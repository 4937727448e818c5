"""Texts by client: plays by speaking role, LEAF's windows, and text files."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from fedax.core import DataError
from fedax.data.folder import MissingFile, read_whole, reading
from fedax.data.formats.leaf import leaf_folders, read_users
from fedax.data.limits import checked
from fedax.data.sources.play import roles_of, tinyshakespeare_text
from fedax.examples.client_names import natural


class Texts(NamedTuple):
    """Each client's texts, and perhaps its texts for testing, both by its name."""

    train: dict[str, list[str]]
    test: dict[str, list[str]] | None = None


@checked()
def texts_by_client(
    source: str | Path = "tinyshakespeare", folder: str | Path | None = None
) -> Texts:
    r"""Reads the texts of each client.

    Args:
        source: `"tinyshakespeare"`, the excerpt of Shakespeare's plays by role; `"shakespeare"`,
            the plays in the files that LEAF writes (see `fedax.data.shakespeare`), every window
            with the character that follows it as one text; or a path: of a text file of plays (see
            `fedax.data.roles_of`), or of a folder with one `.txt` or `.txt.gz` file for each
            client.
        folder: of the two data sets, as in `fedax.data.tinyshakespeare` and
            `fedax.data.shakespeare`.

    Raises:
        DataError: a missing or broken file, or one without text.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "play.txt").write_text("A:\nTo be.\n\nB:\nHm.\n\nA:\nOr not.\n")
    ...     texts_by_client(Path(folder) / "play.txt").train
    {'A': ['To be. Or not.'], 'B': ['Hm.']}
    """
    if source == "tinyshakespeare":
        return _parse_roles(tinyshakespeare_text(folder))
    if source == "shakespeare":
        train, test = leaf_folders(folder, "Shakespeare")
        return Texts(_read_windows(train), _read_windows(test) if test.is_dir() else None)
    path = Path(source)
    if os.path.isfile(path):
        return _parse_roles(_read(path))
    if not os.path.isdir(path):
        allowed = (
            "'tinyshakespeare', 'shakespeare', a file of plays, or a folder with one .txt "
            "file for each client"
        )
        raise MissingFile.of("texts_by_client(source=...)", str(source), allowed)
    files = dict[str, Path]()
    for file in sorted(path.iterdir(), key=_sort_key):
        # a second file of a client, such as a gzipped one, is refused
        if _is_text(file) and files.setdefault(_client_name(file), file) != file:
            got = f"two files of {_client_name(file)!r} in {path}"
            raise DataError.found("texts_by_client(source=...)", got, "one file for each client")
    if not files:
        raise MissingFile.of(
            "texts_by_client(source=...)", f"no .txt file in {path}", "one for each client"
        )
    return Texts({client: [_read(file)] for client, file in files.items()})


def _parse_roles(text: str) -> Texts:
    return Texts({role: [speech] for role, speech in roles_of(text).items()})


def _read_windows(folder: Path) -> dict[str, list[str]]:
    users = read_users(folder)
    for user, (x, y) in users.items():
        for text in (*x, *y):
            if not isinstance(text, str):
                raise DataError.of("leaf", f"user {user!r} with {text!r}", "texts")
    return {
        user: [before + after for before, after in zip(x, y, strict=True)]
        for user, (x, y) in users.items()
    }


def _client_name(path: Path) -> str:
    return path.name[: -len(".txt.gz" if path.suffix.lower() == ".gz" else ".txt")]


def _sort_key(path: Path) -> Any:
    return natural(path.name)


def _is_text(path: Path) -> bool:
    return path.name.lower().endswith((".txt", ".txt.gz")) and path.is_file()


def _read(path: Path) -> str:
    with reading(path, "text in UTF-8"):
        return read_whole(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
