"""User code that experiments name: which it is, and whether it has changed.

`Experiment`, which these functions take, imports this module.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from fedax.core import InvalidInput
from fedax.experiments.config.plan import Member
from fedax.experiments.config.toml import map_texts
from fedax.utils.plugins import is_reference, is_user_code, load, without_folders

PATHS = ("folder", "params")
"""Options of tasks that are paths."""
TABLES = ("table", "test", "central")
"""Options of the task `table` that are paths."""


def user_code(experiment: Any, member: Member | None = None) -> dict[str, str]:
    """Returns the names in an experiment that stand for user code, each with its kind (see
    `fedax.utils.plugins`).

    Args:
        experiment: the experiment.
        member: one of its members, for its code alone; by default the code of all.
    """
    # (kind, name) of everything that may be a reference; None where the file has no such table
    references: list[tuple[str, Any]] = [
        ("task", experiment.task.name),
        ("model", experiment.task.options.get("model")),
    ]
    references += [("observer", name) for name in experiment.observe or ()]
    for field, kind in (("up", "codec"), ("down", "codec"), ("attack", "attack")):
        section = getattr(experiment.channel, field, None)
        # the codec inside `ef21` or `diana`
        for owner in (section, getattr(section, "codec", None)):
            references.append((kind, getattr(owner, "name", None)))
    if experiment.clock:
        values = experiment.clock.options.values()
        references += [("device", value) for value in values if is_reference(value)]
    for entry in experiment.members() if member is None else [member]:
        references += [("algorithm", entry.algorithm.name), ("solver", entry.solver.name)]
        for kind in ("sampling", "availability"):
            rule = entry.schedule.get(kind)
            # a text, or a table with options
            references.append((kind, rule.get("name") if isinstance(rule, dict) else rule))
    return {
        name: kind
        for kind, name in references
        # an entry point may be installed only where the experiment ran
        if is_user_code(kind, name) or name in experiment.sources
    }


def resolve_code_path(text: str, folder: Path) -> str:
    """Returns a reference to user code that lies in a folder with its path; other texts, such as
    those of code that lies elsewhere, stay.
    """
    file, _, title = text.rpartition(":") if is_reference(text) else ("", "", "")
    is_there = file.endswith(".py") and (folder / file).is_file()
    return f"{folder / file}:{title}" if is_there else text


def resolve_data_paths(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the values of an experiment file with absolute paths in its table `[task]`.

    Args:
        document: plain values.
        folder: at which relative paths begin.
    """
    section = document.get("task")
    if not isinstance(section, dict):
        return document
    keys = PATHS + TABLES if section.get("name") == "table" else PATHS
    absolute = {
        key: str((folder / Path(section[key]).expanduser()).absolute())
        for key in keys
        if isinstance(section.get(key), str)
    }
    return document | {"task": section | absolute}


def check_sources(experiment: Any) -> dict[str, str]:
    """Returns the SHA-256 of the files of user code, by the name in the experiment.

    Raises:
        InvalidInput: a file that has changed since the experiment was read.
    """
    hashes = {name: load(kind, name).sha256 for name, kind in user_code(experiment).items()}
    for name, current in hashes.items():
        recorded = experiment.sources.get(name, current)
        if current != recorded:
            reason = f"its file has changed (SHA-256 {recorded[:12]} then, {current[:12]} now)"
            hint = "Put it back as it was, or run in another folder."
            raise InvalidInput.because(name, reason, hint)
    return hashes


def refuse_code(experiment: Any) -> None:
    """Refuses user code, before any of it is loaded, in what may come from somebody else."""
    if code := user_code(experiment):
        reason = f"the run directory names code ({', '.join(code)})"
        hint = "Read it: --trust-code runs it, if its files are those of the runs."
        raise InvalidInput.because(experiment.name, reason, hint)


def copy_code(experiment: Any, folder: Path) -> dict[str, Any]:
    """Copies the files of user code into a folder, and returns the resolved experiment, which names
    them there.

    A file keeps its name, unless another file of that name was copied before it. Its name then ends
    in the first digits of its SHA-256.

    Raises:
        InvalidInput: a file that has changed since the experiment was read.
    """
    document = experiment.resolved()
    hashes = dict[str, str]()  # by the name of the copy, in small letters
    for name, sha256 in experiment.sources.items():
        location, _, title = name.rpartition(":")
        if not location.endswith(".py"):
            continue
        file = Path(location).expanduser()
        target = file.name
        # some file systems do not tell small letters from capitals
        if hashes.setdefault(target.casefold(), sha256) != sha256:
            target = f"{file.stem}-{sha256[:8]}.py"
        shutil.copyfile(file, folder / target)
        if hashlib.sha256((folder / target).read_bytes()).hexdigest() != sha256:
            raise InvalidInput.because(name, "its file has changed since it was read")
        document = _replace_name(document, name, f"{target}:{title}")
    # the copies may be edited there
    document.pop("sources", None)
    return document


def fingerprint_sources(
    experiment: Any, member: Member, settings: dict[str, Any]
) -> dict[str, Any]:
    """Returns the settings of a run with the files of its user code, by their hash and without
    their folders.
    """
    hashes = dict[str, str]()
    for name in user_code(experiment, member):
        # a moved file must not change the fingerprint
        short = without_folders(name)
        settings = _replace_name(settings, name, short)
        # of files of equal names in several folders, one after the other
        hashes[short] = hashes.get(short, "") + experiment.sources.get(name, "")
    return settings | ({"sources": hashes} if hashes else {})


def _replace_name(values: Any, name: str, replacement: str) -> Any:
    """Returns plain values in which one text, also as a key, is replaced by another."""
    return map_texts(values, lambda text: replacement if text == name else text)
