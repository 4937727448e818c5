"""Finds user code by name: `path/to/file.py:Name`, `package.module:Name`, or the name of an entry
point.

Everything that takes the name of a built-in algorithm, task, model, solver, observer, sampling rule
or codec takes these too.
"""

import functools
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedax.errors import InvalidInput, UnknownName

GROUPS = {
    "algorithm": "fedax.algorithms",
    "task": "fedax.tasks",
    "model": "fedax.models",
    "solver": "fedax.solvers",
    "observer": "fedax.observers",
    "sampling": "fedax.sampling",
    "availability": "fedax.availability",
    "codec": "fedax.codecs",
    "attack": "fedax.attacks",
}
"""Groups of entry points, by the kind of object that they name."""

FORM = "path/to/file.py:Name or package.module:Name"
_REFERENCE = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")


class Plugin(NamedTuple):
    """An object from outside of fedax.

    Attributes:
        value: the class, function or object.
        file: the file that defines it, None if it has none.
        sha256: of the file, empty without one.
    """

    value: Any
    file: Path | None
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


def split_reference(text: str) -> tuple[str, str] | None:
    """Splits a reference from what follows it after a colon; returns None for a text that does not
    begin with one.

    >>> (
    ...     split_reference("half.py:FedHalf:lr=0.5"),
    ...     split_reference("lab.methods:FedHalf"),
    ...     split_reference("fedprox:mu=1"),
    ... )
    (('half.py:FedHalf', 'lr=0.5'), ('lab.methods:FedHalf', ''), None)
    """
    match = re.match(rf"(?P<reference>{_REFERENCE.pattern})(?::(?P<rest>.*))?$", text, re.DOTALL)
    if match is None or (
        "." not in match["place"] and importlib.util.find_spec(match["place"]) is None
    ):
        return None  # such as `fedprox:mu`, where a value is missing
    return match["reference"], match["rest"] or ""


def is_user_code(kind: str, name: object) -> bool:
    """Returns whether a name is a reference, or an entry point of its kind."""
    return is_reference(name) or (isinstance(name, str) and name in _entry_points(kind))


def title_of(name: str) -> str:
    """Returns the name of the object that a reference refers to; other names are returned as they
    are.

    >>> title_of("mine/half.py:FedHalf"), title_of("fedprox")
    ('FedHalf', 'fedprox')
    """
    match = _REFERENCE.fullmatch(name)
    return match["name"] if match else name


def without_folders(name: str) -> str:
    """Returns a reference without the folders of its file, so that moved files keep their name.

    >>> without_folders("mine/half.py:FedHalf"), without_folders("lab.methods:FedHalf")
    ('half.py:FedHalf', 'lab.methods:FedHalf')
    """
    match = _REFERENCE.fullmatch(name)
    return (
        f"{Path(match['place']).name}:{match['name']}"
        if match and match["place"].endswith(".py")
        else name
    )


def find(
    kind: str,
    name: str,
    built_in: Mapping[str, Any],
    allowed: str,
    accepts: Callable[[Any], bool] = callable,
) -> Any:
    """Returns the built-in object of a name, or the user's.

    Args:
        kind: a key of `GROUPS`, also the word for messages.
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
        description = (
            f"class {value.__name__}"
            if isinstance(value, type)
            else (f"an object of {type(value).__name__}")
        )
        raise InvalidInput.found(kind, f"{name!r}, {description}", allowed)
    return value


def load(kind: str, name: str, built_in: Collection[str] = ()) -> Plugin:
    """Loads user code by name. A file is read at every call, and run again only if it has changed.

    Raises:
        UnknownName, InvalidInput: as `find`.
    """
    reference = name if is_reference(name) else _entry_points(kind).get(name)
    match = _REFERENCE.fullmatch(reference or "")
    if match is None:
        if name.endswith(".py") or "/" in name:
            raise InvalidInput.of(kind, name, f"{FORM}, such as {name}:Name")
        if not built_in:
            raise UnknownName(str(InvalidInput.of(kind, name, FORM)))
        error = UnknownName.among(kind, name, built_in)
        raise UnknownName(f"{error} Your own code is {FORM}.")
    location, attribute = match["place"], match["name"]
    subject = f"{kind} {name!r}"
    module, file, sha256 = (_load_file if location.endswith(".py") else _load_module)(
        location, subject
    )
    if not hasattr(module, attribute):
        public = [
            key
            for key, value in vars(module).items()
            if not key.startswith("_") and callable(value)
        ]
        raise UnknownName.among(f"{kind}, name in {location}", attribute, public or ["(none)"])
    return Plugin(getattr(module, attribute), file, sha256)


@functools.cache
def _entry_points(kind: str) -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUPS[kind])}


def _load_file(location: str, subject: str) -> tuple[ModuleType, Path, str]:
    path = Path(location).expanduser()
    try:
        source = path.read_bytes()
    except OSError as error:
        rule = "Paths begin at the folder of the experiment file, or else at the working directory"
        hint = "" if path.is_absolute() else f"{rule}, {Path.cwd()}."
        raise InvalidInput.because(
            subject, f"{path} cannot be read: {error.strerror or error}", hint
        ) from error
    sha256 = hashlib.sha256(source).hexdigest()
    # one module for equal files: classes of two would be two kinds of algorithms to a compiled
    # program
    name = re.sub(r"\W", "_", path.stem) + f"_{sha256[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        assert spec is not None, "a .py file has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before the code runs, because dataclasses look their module up
        try:
            exec(compile(source, str(path.resolve()), "exec"), vars(module))
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, KeyboardInterrupt):
                raise
            raise InvalidInput.because(subject, _describe(error, path)) from error
    return sys.modules[name], path, sha256


def _load_module(location: str, subject: str) -> tuple[ModuleType, Path | None, str]:
    try:
        module = importlib.import_module(location)
    except (Exception, SystemExit) as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        # the module itself, or a package that it is in
        if is_missing and f"{location}.".startswith(f"{error.name}."):
            hint = (
                f"Install it, or name a file. Your own code is {FORM}, options of a built-in "
                "name are name:key=value."
            )
            raise InvalidInput.because(
                subject, f"there is no module {error.name!r}", hint
            ) from error
        raise InvalidInput.because(
            subject, f"module {location} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    # built-in modules have no file
    file = Path(getattr(module, "__file__", None) or "")
    if not file.is_file():
        return module, None, ""
    return module, file, hashlib.sha256(file.read_bytes()).hexdigest()


def _describe(error: BaseException, path: Path) -> str:
    """Returns where in a file an error was raised, and its text."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path.resolve())
    ]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    text = (
        f"{path}{'' if line is None else f', line {line}'}: {type(error).__name__}: "
        f"{getattr(error, 'msg', error)}"
    )
    if isinstance(error, ModuleNotFoundError):
        sibling = path.parent / f"{str(error.name).partition('.')[0]}.py"
        if sibling.exists():
            text += (
                f" ({sibling.name} lies beside it, but a file with your own code stands "
                "alone; several are a package)"
            )
    return text
