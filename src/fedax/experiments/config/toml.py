"""TOML text whose keys know their line, so that messages can point into the file."""

import contextlib
import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from fedax.core import InvalidInput, SpecError
from fedax.errors import shown
from fedax.experiments.config.shorthand import parse_value
from fedax.utils.files import read

_PART = re.compile(r"[\w-]+|\"[^\"]*\"|'[^']*'")
_LINE = re.compile(r"\s*(\[{0,2})([^=\[\]#]+)[=\]]")
"""The head of a table, or a key with its value."""

KeyPath = tuple[str | int, ...]
"""The path of a value in a document: keys, and positions in arrays."""
Model = TypeVar("Model", bound=BaseModel)


class Source:
    r"""The text of an experiment file.

    >>> Source('rounds = 1\n[task]\nname = "digits"', "a.toml").line_of(("task", "name"))
    3

    Args:
        text: the TOML text.
        name: the file's name, for messages.

    Raises:
        SpecError: malformed TOML, or nested too deeply.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.settings: dict[KeyPath, str] = {}
        try:
            self.document: dict[str, Any] = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"{name}: not valid TOML: {error}.") from error

    @classmethod
    def read(cls, path: Path) -> "Source":
        """Reads a file.

        Raises:
            SpecError: a file that cannot be read, is not UTF-8, or is malformed.
        """
        try:
            return cls(read(path).decode("utf-8-sig"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{path}: cannot be read: {error}.") from error

    def override(self, setting: str) -> None:
        r"""Replaces or adds one value, as `--set` says it: `path=value`, with keys and positions
        (from 0) joined by dots.

        >>> source = Source('[[algorithm]]\nname = "fedprox"', "a.toml")
        >>> source.override("algorithm.0.mu=0.5")
        >>> source.document["algorithm"][0]["mu"]
        0.5

        Raises:
            SpecError: no `path=value`, or a path through something that is no table.
        """
        path, equals, value = setting.partition("=")
        key_path = key_path_of(path)
        if not equals or "" in key_path:
            raise SpecError(f"--set: got {shown(setting)}; allowed: path=value.")
        parsed = parse_value(value.strip())
        # a single seed is allowed, as in `compare --seeds`
        if key_path == ("seeds",) and type(parsed) is int:
            parsed = [parsed]
        place_value(self.document, key_path, parsed, f"--set {setting}")
        self.settings[key_path] = setting

    def validate(self, model: type[Model]) -> Model:
        """Makes a pydantic model of the document.

        Raises:
            SpecError: the first problem, with its key and line.
        """
        try:
            return model.model_validate(self.document)
        except ValidationError as error:
            raise self.error(*explain_error(error)) from error

    def line_of(self, key_path: KeyPath) -> int | None:
        """Returns the line, from 1, of a key, or of the nearest table around it."""
        counts = Counter[KeyPath]()
        table: KeyPath = ()
        longest = 0
        found = None
        for number, line in enumerate(self.text.split("\n"), 1):
            match = _LINE.match(line)
            if match is None:
                continue
            keys: KeyPath = tuple(part.strip("\"'") for part in _PART.findall(match[2]))
            place = table + keys
            if match[1]:
                counts[keys] += match[1] == "[["
                place = ()
                for depth, key in enumerate(keys, 1):
                    count = counts[keys[:depth]]
                    place += (key, count - 1) if count else (key,)
                table = place
            pairs = zip(place, key_path, strict=False)
            shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
            if shared > longest:
                longest = shared
                found = number
        return found

    def error(self, key_path: KeyPath, error: InvalidInput) -> SpecError:
        """Returns a `SpecError` that begins with the file and the line of the key that an error
        names, or with the setting that put the value there.
        """
        table: Any = self.document
        with contextlib.suppress(KeyError, IndexError, TypeError):
            for key in key_path:
                table = table[key]
        if isinstance(table, dict):
            named = [key for key in table if re.search(rf"\b{re.escape(key)}\b", error.field)]
            key_path += tuple(sorted(named, key=error.field.rfind)[-1:])
        # the longest prefix that --set has replaced: the value does not come from the file
        for length in range(len(key_path), 0, -1):
            if key_path[:length] in self.settings:
                return SpecError(f"--set {self.settings[key_path[:length]]}: {error}")
        line = self.line_of(key_path)
        return SpecError(f"{self.name}{'' if line is None else f', line {line}'}: {error}")


def explain_error(error: ValidationError) -> tuple[KeyPath, InvalidInput]:
    """Returns the path of the key of pydantic's first problem, and the problem as one of fedax's
    errors.
    """
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidInput):
        return first["loc"], cause
    if first["type"] == "missing":
        return first["loc"], InvalidInput.because(field, "missing")
    allowed = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return first["loc"], InvalidInput.of(field, first["input"], allowed)


def key_path_of(text: str) -> KeyPath:
    """Returns the path that a text spells; numbers are positions in arrays.

    >>> key_path_of("algorithm.0.mu")
    ('algorithm', 0, 'mu')
    """
    parts = text.strip().split(".")
    return tuple(int(part) if re.fullmatch("[0-9]{1,9}", part) else part for part in parts)


def place_value(document: Any, key_path: KeyPath, value: Any, message_prefix: str) -> None:
    """Puts a value at a place, with tables in between as needed; `message_prefix` begins the
    message if the place is none.

    Raises:
        SpecError: a path through something that is no table, or past the end of an array.
    """
    *parents, last = key_path
    try:
        for key in parents:
            document = document[key] if isinstance(key, int) else document.setdefault(key, {})
        if isinstance(last, int):
            document[last]  # has to exist
        document[last] = value
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        where = ".".join(map(str, key_path))
        raise SpecError(f"{message_prefix}: the file has no place {where}.") from error


def map_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Returns plain values with all texts, keys as well, changed by a function.

    >>> map_texts({"a": ["b", 1]}, str.upper)
    {'A': ['B', 1]}
    """
    if isinstance(value, dict):
        return {change(key): map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def to_toml_values(value: Any) -> Any:
    """Converts to values that TOML can hold; None is left out."""
    if isinstance(value, dict):
        return {key: to_toml_values(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [to_toml_values(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
