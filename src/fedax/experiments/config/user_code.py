"""User code that experiments name: which it is, and whether it has changed.

`Experiment`, which these functions take, imports this module.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedax.core import InvalidInput
from fedax.experiments.config.toml import map_texts
from fedax.utils.plugins import is_reference, load

PATHS = ("folder", "params")
"""Options of tasks that are paths."""
TABLES = ("table", "test", "central")
"""Options of the task `table` that are paths."""
TEXTS = ("label", "y", "client", "classes", "columns", "cluster")
"""Keys whose values name no code, also where they look so: titles, what tables have, and what is of
submitit, such as `"gpu:a100"`."""


def references(values: dict[str, Any]) -> list[str]:
    """Returns the references to user code among the values of an experiment, titles aside.

    >>> references({"name": "half.py:A", "task": {"name": "digits", "model": "net.py:Net"}})
    ['net.py:Net']
    """
    return list(dict.fromkeys(_find_references(values | {"name": ""})))


def _find_references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [item for key, item in value.items() if key not in TEXTS]
    if isinstance(value, list):
        for item in value:
            yield from _find_references(item)
    elif is_reference(value):
        yield value


def resolve_code_path(text: str, folder: Path) -> str:
    """Returns a reference to user code that lies in a folder with its path; other texts, such as
    those of code that lies elsewhere, stay.
    """
    file, _, title = text.rpartition(":") if is_reference(text) else ("", "", "")
    is_there = file.endswith(".py") and (folder / file).is_file()
    return f"{folder / file}:{title}" if is_there else text


def resolve_data_paths(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the values of an experiment file with absolute paths in its table `[task]`. An empty
    text is no path.

    Args:
        document: plain values.
        folder: at which relative paths begin.
    """
    section = document.get("task")
    if not isinstance(section, dict):
        return document
    keys = PATHS + TABLES if section.get("name") == "table" else PATHS
    absolute = {
        key: str((folder / Path(value).expanduser()).absolute())
        for key in keys
        if isinstance(value := section.get(key), str) and value
    }
    return document | {"task": section | absolute}


def hash_sources(values: Any) -> dict[str, str]:
    """Returns the SHA-256 of the files of the user code that an experiment's values name."""
    return {name: load("code", name).sha256 for name in references(values)}


def check_sources(experiment: Any) -> None:
    """Refuses user code of which a run directory has another hash.

    Raises:
        InvalidInput: a file that has changed since.
    """
    for name, recorded in experiment.sources.items():
        current = load("code", name).sha256
        if current != recorded:
            reason = f"its file has changed (SHA-256 {recorded[:12]} then, {current[:12]} now)"
            hint = "Put it back as it was, or run in another folder."
            raise InvalidInput.because(name, reason, hint)


def refuse_code(document: dict[str, Any]) -> None:
    """Refuses user code, before any of it is loaded, in what may come from somebody else."""
    if code := references(document):
        reason = f"the run directory names code ({', '.join(code)})"
        hint = "Read it: --trust-code runs it, if its files are those of the runs."
        raise InvalidInput.because(str(document.get("name")), reason, hint)


def copy_code(experiment: Any, folder: Path) -> dict[str, Any]:
    """Copies the files of user code into a folder, and returns the resolved experiment, which names
    them there.

    A file keeps its name, unless another file of that name was copied before it. Its name then ends
    in the first digits of its SHA-256.
    """
    document = experiment.resolved()
    copied = dict[str, bytes]()  # by the name of the copy, in small letters
    for name in references(document):
        location, _, title = name.rpartition(":")
        if not location.endswith(".py"):
            continue
        file = Path(location).expanduser()
        content = file.read_bytes()
        target = file.name
        # some file systems do not tell small letters from capitals
        if copied.setdefault(target.casefold(), content) != content:
            target = f"{file.stem}-{hashlib.sha256(content).hexdigest()[:8]}.py"
        (folder / target).write_bytes(content)
        document = _replace_name(document, name, f"{target}:{title}")
    return document


def fingerprint_sources(settings: dict[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings of a run with the files of its user code, by their hash and without
    their folders.

    Args:
        settings: of the run.
        sources: hashes of the files, see `hash_sources`.
    """
    hashes = dict[str, str]()
    for name in references(settings):
        # a moved file must not change the fingerprint
        short = Path(name).name
        settings = _replace_name(settings, name, short)
        # of files of equal names in several folders, one after the other
        hashes[short] = hashes.get(short, "") + sources.get(name, "")
    return settings | ({"sources": hashes} if hashes else {})


def _replace_name(values: Any, name: str, replacement: str) -> Any:
    """Returns plain values in which one text, also as a key, is replaced by another."""
    return map_texts(values, lambda text: replacement if text == name else text)
