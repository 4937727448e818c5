"""Finds user code by name: `path/to/file.py:Name`, `package.module:Name`, or the name of an entry
point.

Everything that takes the name of a built-in algorithm, task, model, solver, observer, sampling rule
or codec takes these too.
"""

import functools
import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedax.errors import InvalidInput, UnknownName

FORM = "path/to/file.py:Name, seen from the current folder, or package.module:Name"
_REFERENCE = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")


class Plugin(NamedTuple):
    """An object from outside of fedax.

    Attributes:
        value: the class, function or object.
        sha256: of the file that defines it, empty if it has none.
    """

    value: Any
    sha256: str


def is_reference(name: object) -> bool:
    """Returns whether a name says where user code is.

    >>> [
    ...     is_reference(name)
    ...     for name in ("mine/half.py:FedHalf", "lab.methods:FedHalf", "fedprox", "fedprox:mu=1")
    ... ]
    [True, True, False, False]
    """
    return isinstance(name, str) and _REFERENCE.fullmatch(name) is not None


def is_user_code(kind: str, name: object) -> bool:
    """Returns whether a name is a reference, or an entry point of its kind."""
    return is_reference(name) or name in _entry_points(kind)


def find(
    kind: str,
    name: str,
    built_in: Mapping[str, Any],
    allowed: str,
    accepts: Callable[[Any], bool] = callable,
) -> Any:
    """Returns the built-in object of a name, or the user's.

    Args:
        kind: the word for messages.
        name: of a built-in object, an entry point, or a reference.
        built_in: the built-in objects by name.
        allowed: what the object has to be, for the message.
        accepts: whether the user's object is that.

    Raises:
        UnknownName: no such name; the message holds the nearest one.
        InvalidInput: user code that cannot be loaded, or that is something else.
    """
    if name in built_in:
        return built_in[name]
    value = load(kind, name, built_in).value
    if not accepts(value):
        raise InvalidInput.found(kind, f"{name!r}, {value!r}", allowed)
    return value


def load(kind: str, name: str, built_in: Collection[str] = ()) -> Plugin:
    """Loads user code by name. A file is read at every call, and run again only if it has changed.

    Raises:
        UnknownName, InvalidInput: as `find`.
    """
    subject = f"{kind} {name!r}"
    reference = name if is_reference(name) else _entry_points(kind).get(name, name)
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        error = UnknownName.among(kind, name, built_in)
        raise UnknownName(f"{error} Your own code is {FORM}.")
    place = match["place"]
    try:
        module = _import_file(place) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(Path(place).resolve())]
        line = f", line {lines[-1]}" if lines else ""
        reason = f"{place}{line} cannot be loaded: {type(error).__name__}: {error}"
        raise InvalidInput.because(subject, reason, f"Your own code is {FORM}.") from error
    if not hasattr(module, match["name"]):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UnknownName.among(f"{kind}, name in {place}", match["name"], public)
    # built-in modules have no file
    file = Path(getattr(module, "__file__", None) or "")
    if place.endswith(".py"):
        file = Path(place).expanduser()
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    return Plugin(getattr(module, match["name"]), sha256)


@functools.cache
def _entry_points(kind: str) -> dict[str, str]:
    # fedax.algorithms, but fedax.sampling and fedax.availability
    group = f"fedax.{kind}" if kind in ("sampling", "availability") else f"fedax.{kind}s"
    return {point.name: point.value for point in entry_points(group=group)}


def _import_file(place: str) -> ModuleType:
    """Imports a file; one module for equal files, whose classes are one kind of algorithm."""
    path = Path(place).expanduser().resolve()
    source = path.read_bytes()
    name = re.sub(r"\W", "_", path.stem) + f"_{hashlib.sha256(source).hexdigest()[:12]}"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # before the code runs, because dataclasses look their module up
        try:
            exec(compile(source, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
