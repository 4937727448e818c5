"""TOML text whose keys know their line, so that messages can point into the file."""

import bisect
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import SpecError
from fedax.errors import is_printable, shown
from fedax.experiments.config.shorthand import typed

MOST_BYTES = 1 << 20
"""Of an experiment file or recipe."""
_DEEP = re.compile(
    r"(?<![\w-])(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}"
)  # keys below keys: slow to parse
_PARTS = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'|#[^\n]*|[\[\]{}\n]""",
    re.DOTALL,
)
"""All of a TOML text that decides where its statements end: texts, comments, brackets and ends of
lines."""

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
        # checked before the parser, which is slow on such keys
        if found := _DEEP.search(text):
            line = text.count("\n", 0, found.start()) + 1
            raise SpecError(
                f"{name}, line {line}: not a file that is read: a key of more than 64 parts."
            )
        try:
            self.document: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            reason, line = _reason(str(error), text)
            raise SpecError(f"{name}, line {line}: not valid TOML: {reason}.") from error
        except RecursionError as error:
            raise SpecError(
                f"{name}: not a file that is read: arrays or tables nested too deep."
            ) from error
        except ValueError as error:  # Python reads no number of more than 4,300 digits
            raise SpecError(f"{name}: not a file that is read: {error}.") from error
        self.settings: dict[KeyPath, str] = {}
        if (found := _unprintable(self.document)) is not None:
            raise self.error(
                found[0], f"got {shown(found[1])}; allowed: text without control characters."
            )

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
        parts = path.strip().split(".")
        # digits are positions in an array; a key of digits cannot be set this way
        place: KeyPath = tuple(
            int(part) if re.fullmatch("[0-9]{1,9}", part) else part for part in parts
        )
        if not equals or "" in place or len(place) > 64:
            raise SpecError(
                f"--set: got {shown(setting)}; allowed: path=value, such as "
                "task.alpha=0.5 or algorithm.0.mu=1."
            )
        given = typed(value.strip())
        # a single seed is allowed, as in `compare --seeds`
        if place == ("seeds",) and type(given) is int:
            given = [given]
        place_value(self.document, place, given, f"--set {setting}")
        self.settings[place] = setting

    @classmethod
    def read(cls, path: Path) -> "Source":
        """Reads a file.

        Raises:
            SpecError: a file that cannot be read, is not UTF-8, has more than `MOST_BYTES`, or is
                malformed; no plain file, because a pipe or a device may never end.
        """
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise SpecError(f"{path}: cannot be read: not a plain file.")
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise SpecError(
                    f"{path}: cannot be read: more than {MOST_BYTES} bytes; allowed: {MOST_BYTES}."
                )
            return cls(content.decode("utf-8"), str(path))
        except OSError as error:
            raise SpecError(f"{path}: cannot be read: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise SpecError(
                f"{path}: cannot be read: not UTF-8 text (byte {error.start})."
            ) from error

    def find(self, place: KeyPath) -> Any:
        """Returns the value at a place, or None."""
        return _find(self.document, place)

    def line_of(self, place: KeyPath) -> int | None:
        """Returns the line, from 1, on which the value at a path begins; that of the nearest
        enclosing table if it is missing.
        """
        while place and self.find(place) is None:
            place = place[:-1]
        if not place:
            return None
        # The statement that brings the place ends the shortest run of statements, from the first
        # on, that has it.
        # (characters, lines) at the end of each statement; (0, 0) stands for the empty text
        ends = [(0, 0), *_statements(self.text)]
        # the prefixes up to a statement are valid TOML; about log2(statements) of them are parsed
        there = bisect.bisect_left(
            ends, True, key=lambda end: _find(tomllib.loads(self.text[: end[0]]), place) is not None
        )
        return ends[there - 1][1] + 1 if 0 < there < len(ends) else None

    def error(self, place: KeyPath, message: str) -> SpecError:
        """Returns a `SpecError` that begins with the file and the line of a path, or with the
        setting that put the value there.
        """
        # the longest prefix that --set has replaced: the value does not come from the file
        for length in range(len(place), 0, -1):
            if place[:length] in self.settings:
                return SpecError(f"--set {self.settings[place[:length]]}: {message}")
        line = self.line_of(place)
        return SpecError(f"{self.name}{'' if line is None else f', line {line}'}: {message}")


def place_value(document: Any, place: KeyPath, value: Any, what: str) -> None:
    """Puts a value at a place, with tables in between as needed; `what` begins the message if the
    place is none.

    Raises:
        SpecError: a path through something that is no table, or past the end of an array.
    """
    table: Any = document
    for depth, key in enumerate(place):
        known, has = _parts(table)
        # an integer needs an existing position, a text needs a table
        if (key not in known) if isinstance(key, int) else (has != "keys"):
            where = ".".join(map(str, place[:depth])) or "the file"
            raise SpecError(f"{what}: got {str(key)!r}; allowed: {where} has {has}.")
        if depth == len(place) - 1:
            table[key] = value  # type: ignore[index]
        else:
            table = table[key] if isinstance(key, int) else table.setdefault(key, {})


def plain(value: Any) -> Any:
    """Converts to values that TOML can hold; None is left out."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _parts(table: Any) -> tuple[range, str]:
    """Returns the positions of an array, and in words what a value has."""
    if isinstance(table, list):
        return range(len(table)), f"positions 0 to {len(table) - 1}"
    return range(0), "keys" if isinstance(table, dict) else "no parts"


def _statements(text: str) -> list[tuple[int, int]]:
    """Yields the end of each statement of a valid TOML text, and the lines until there; a line
    without one counts as one.
    """
    ends, depth, lines = [], 0, 0
    for part in _PARTS.finditer(text):
        found = part[0]
        depth += (found in ("[", "{")) - (found in ("]", "}"))
        lines += found.count("\n")
        if found == "\n" and depth == 0:
            ends.append((part.end(), lines))
    return [*ends, (len(text), lines + 1)]


def _unprintable(document: dict[str, Any]) -> tuple[KeyPath, str] | None:
    """Finds a key or a text with control characters other than ends of lines and tabs, and its
    place.
    """
    # (path, value) pairs still to look at
    left: list[tuple[KeyPath, Any]] = [((), document)]
    while left:
        place, value = left.pop()
        if isinstance(value, dict):
            if bad := next((key for key in value if not is_printable(key)), None):
                return (*place, bad), bad
            left += [((*place, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            left += [((*place, i), item) for i, item in enumerate(value)]
        elif isinstance(value, str) and not is_printable(value.replace("\n", "").replace("\t", "")):
            return place, value
    return None


def _find(document: Any, place: KeyPath) -> Any:
    for key in place:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _reason(message: str, text: str) -> tuple[str, int]:
    """Returns the parser's message without its trailing position, and the line."""
    # at the end of the document the parser names no line
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message)
    if match is None:
        return message, 1
    return match[1].replace("'\\n'", "end of line"), int(
        match[2] or max(text.rstrip("\n").count("\n") + 1, 1)
    )
