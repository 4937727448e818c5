"""TOML text whose keys know their line, so that messages can point into the file."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedax.core import SpecError
from fedax.experiments.config.shorthand import typed

KeyPath = tuple[str | int, ...]
"""The path of a value in a document: keys, and positions in arrays."""


class Source:
    r"""The text of an experiment file.

    >>> Source('rounds = 1\n[task]\nname = "digits"', "a.toml").line_of(("task", "name"))
    3

    Args:
        text: the TOML text.
        name: the file's name, for messages.

    Raises:
        SpecError: malformed TOML, with its line.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        try:
            self.document: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            reason, line = _reason(str(error), text)
            raise SpecError(f"{name}, line {line}: not valid TOML: {reason}.") from error
        self.settings: dict[KeyPath, str] = {}

    def override(self, setting: str) -> None:
        r"""Replaces or adds one value, as `--set` says it: `path=value`, with keys and positions (from 0) joined by dots.

        >>> source = Source('[[algorithm]]\nname = "fedprox"', "a.toml")
        >>> source.override("algorithm.0.mu=0.5")
        >>> source.document["algorithm"][0]["mu"]
        0.5

        Raises:
            SpecError: no `path=value`, or a path through something that is no table.
        """
        path, equals, value = setting.partition("=")
        place: KeyPath = tuple(int(part) if part.isdigit() else part for part in path.strip().split("."))
        if not equals or "" in place:
            raise SpecError(f"--set: got {setting!r}; allowed: path=value, such as task.alpha=0.5 or algorithm.0.mu=1.")
        place_value(self.document, place, typed(value.strip()), f"--set {setting}")
        self.settings[place] = setting

    @classmethod
    def read(cls, path: Path) -> "Source":
        """Reads a file.

        Raises:
            SpecError: a file that cannot be read, is not UTF-8, or is malformed.
        """
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise SpecError(f"{path}: cannot be read: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise SpecError(f"{path}: cannot be read: not UTF-8 text (byte {error.start}).") from error

    def find(self, place: KeyPath) -> Any:
        """The value at a place, or None."""
        return _find(self.document, place)

    def line_of(self, place: KeyPath) -> int | None:
        """The line, from 1, on which the value at a place begins; that of the nearest enclosing table if it is not there."""
        while place and self.find(place) is None:
            place = place[:-1]
        if not place:
            return None
        # A prefix of the text that is valid TOML ends between two statements. The statement that first brings the
        # place begins right after the longest valid prefix without it.
        begin = 1
        for count, _ in enumerate(self.text.splitlines(), start=1):
            try:
                document = tomllib.loads("\n".join(self.text.splitlines()[:count]))
            except tomllib.TOMLDecodeError:
                continue
            if _find(document, place) is not None:
                return begin
            begin = count + 1
        return None

    def error(self, place: KeyPath, message: str) -> SpecError:
        """A `SpecError` that begins with the file and the line of a place, or with the setting that put the value there."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.settings:
                return SpecError(f"--set {self.settings[place[:length]]}: {message}")
        line = self.line_of(place)
        return SpecError(f"{self.name}{'' if line is None else f', line {line}'}: {message}")


def place_value(document: Any, place: KeyPath, value: Any, what: str) -> None:
    """Puts a value at a place, with tables in between as needed; `what` begins the message if the place is none.

    Raises:
        SpecError: a path through something that is no table, or past the end of an array.
    """
    table: Any = document
    for depth, key in enumerate(place):
        known, has = _parts(table)
        if (key not in known) if isinstance(key, int) else (has != "keys"):
            where = ".".join(map(str, place[:depth])) or "the file"
            raise SpecError(f"{what}: got {str(key)!r}; allowed: {where} has {has}.")
        if depth == len(place) - 1:
            table[key] = value  # type: ignore[index]
        else:
            table = table[key] if isinstance(key, int) else table.setdefault(key, {})


def _parts(table: Any) -> tuple[range, str]:
    """The positions of an array, and in words what a value has."""
    if isinstance(table, list):
        return range(len(table)), f"positions 0 to {len(table) - 1}"
    return range(0), "keys" if isinstance(table, dict) else "no parts"


def _find(document: Any, place: KeyPath) -> Any:
    for key in place:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _reason(message: str, text: str) -> tuple[str, int]:
    """The parser's own words without their trailing position, and the line."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message)
    if match is None:
        return message, 1
    return match[1].replace("'\\n'", "end of line"), int(match[2] or max(len(text.splitlines()), 1))
