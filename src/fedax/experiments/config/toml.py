"""TOML text whose keys know their line, so that messages can point into the file."""

import bisect
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedax.core import InvalidInput, SpecError
from fedax.errors import is_printable, shown
from fedax.experiments.config.shorthand import parse_value

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
        if problem := _DEEP.search(text):
            line = text.count("\n", 0, problem.start()) + 1
            raise SpecError(
                f"{name}, line {line}: not a file that is read: a key of more than 64 parts."
            )
        try:
            self.document: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            reason, line = _split_parser_message(str(error), text)
            raise SpecError(f"{name}, line {line}: not valid TOML: {reason}.") from error
        except RecursionError as error:
            raise SpecError(
                f"{name}: not a file that is read: arrays or tables nested too deep."
            ) from error
        except ValueError as error:  # Python reads no number of more than 4,300 digits
            raise SpecError(f"{name}: not a file that is read: {error}.") from error
        self.settings: dict[KeyPath, str] = {}
        if (problem := _find_unprintable(self.document)) is not None:
            raise self.error(
                problem[0], f"got {shown(problem[1])}; allowed: text without control characters."
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
        keys = path.strip().split(".")
        # digits are positions in an array; a key of digits cannot be set this way
        key_path: KeyPath = tuple(
            int(key) if re.fullmatch("[0-9]{1,9}", key) else key for key in keys
        )
        if not equals or "" in key_path or len(key_path) > 64:
            raise SpecError(
                f"--set: got {shown(setting)}; allowed: path=value, such as "
                "task.alpha=0.5 or algorithm.0.mu=1."
            )
        parsed = parse_value(value.strip())
        # a single seed is allowed, as in `compare --seeds`
        if key_path == ("seeds",) and type(parsed) is int:
            parsed = [parsed]
        place_value(self.document, key_path, parsed, f"--set {setting}")
        self.settings[key_path] = setting

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
            return cls(content.decode("utf-8-sig"), str(path))
        except OSError as error:
            raise SpecError(f"{path}: cannot be read: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise SpecError(
                f"{path}: cannot be read: not UTF-8 text (byte {error.start})."
            ) from error

    def find(self, key_path: KeyPath) -> Any:
        """Returns the value at a place, or None."""
        return _look_up(self.document, key_path)

    def line_of(self, key_path: KeyPath) -> int | None:
        """Returns the line, from 1, on which the value at a path begins; that of the nearest
        enclosing table if it is missing.
        """
        while key_path and self.find(key_path) is None:
            key_path = key_path[:-1]
        if not key_path:
            return None
        # The statement that brings the place ends the shortest run of statements, from the first
        # on, that has it.
        # (characters, lines) at the end of each statement; (0, 0) stands for the empty text
        statement_ends = [(0, 0), *_find_statement_ends(self.text)]
        # the prefixes up to a statement are valid TOML; about log2(statements) of them are parsed
        index = bisect.bisect_left(
            statement_ends,
            True,
            key=lambda end: _look_up(tomllib.loads(self.text[: end[0]]), key_path) is not None,
        )
        return statement_ends[index - 1][1] + 1 if 0 < index < len(statement_ends) else None

    def error(self, key_path: KeyPath, message: str) -> SpecError:
        """Returns a `SpecError` that begins with the file and the line of a path, or with the
        setting that put the value there.
        """
        # the longest prefix that --set has replaced: the value does not come from the file
        for length in range(len(key_path), 0, -1):
            if key_path[:length] in self.settings:
                return SpecError(f"--set {self.settings[key_path[:length]]}: {message}")
        line = self.line_of(key_path)
        return SpecError(f"{self.name}{'' if line is None else f', line {line}'}: {message}")


def place_value(document: Any, key_path: KeyPath, value: Any, message_prefix: str) -> None:
    """Puts a value at a place, with tables in between as needed; `message_prefix` begins the
    message if the place is none.

    Raises:
        SpecError: a path through something that is no table, or past the end of an array.
    """
    table: Any = document
    for depth, key in enumerate(key_path):
        positions, contents = _describe_container(table)
        # an integer needs an existing position, a text needs a table
        if (key not in positions) if isinstance(key, int) else (contents != "keys"):
            where = ".".join(map(str, key_path[:depth])) or "the file"
            raise SpecError(f"{message_prefix}: got {str(key)!r}; allowed: {where} has {contents}.")
        if depth == len(key_path) - 1:
            table[key] = value  # type: ignore[index]
        else:
            table = table[key] if isinstance(key, int) else table.setdefault(key, {})


def replace_strings(text: str, replace: Callable[[str], str]) -> str:
    r"""Returns a valid TOML text with other strings, as values and as keys in quotes; all else
    stays as it is.

    Args:
        text: the TOML text.
        replace: returns what stands for a string.

    >>> replace_strings("# 'a'\nx = [\"a\", 'b']  # it's", lambda string: string + "!")
    '# \'a\'\nx = ["a!", "b!"]  # it\'s'
    """

    def replace_token(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] not in "\"'":
            return token
        string = tomllib.loads(f"x = {token}")["x"]
        replacement = replace(string)
        # of printable characters, the escapes of JSON are those of TOML
        return token if replacement == string else json.dumps(replacement, ensure_ascii=False)

    return _PARTS.sub(replace_token, text)


def to_toml_values(value: Any) -> Any:
    """Converts to values that TOML can hold; None is left out."""
    if isinstance(value, dict):
        return {key: to_toml_values(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [to_toml_values(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


_KINDS = {
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "string_type": "text",
    "int_type": "whole numbers",
    "float_type": "numbers",
    "bool_type": "true or false",
}
"""By pydantic's name of a problem, what TOML has in that place."""
_NAMED = ("task", "solver", "algorithm", "up", "down", "codec", "attack")
"""Keys of tables that begin with a name."""


def explain_type(problem: Mapping[str, Any], holds_tables: bool = False) -> str | None:
    r"""Returns a message about a value of another type, in TOML's terms; None for other problems.

    Args:
        problem: one of `pydantic.ValidationError.errors()`.
        holds_tables: whether the key's list is one of tables.

    >>> explain_type({"type": "list_type", "loc": ("observe",), "input": "test_loss"})
    'observe: got \'test_loss\'; allowed: a list. Write observe = ["test_loss"].'
    """
    kind = _KINDS.get(problem["type"])
    if kind is None:
        return None
    value, key_path = problem["input"], problem["loc"]
    names = [key for key in key_path if isinstance(key, str)]
    field = ".".join(map(str, key_path))
    is_tables = isinstance(value, list) and any(isinstance(entry, dict) for entry in value)
    got = "a table" if isinstance(value, dict) else "tables" if is_tables else shown(value)
    if isinstance(value, bool):
        got = str(value).lower()
    hint = _hint_at_type(kind, value, names[-1] if names else "", key_path, holds_tables)
    return str(InvalidInput.found(field, got, kind, hint))


def _hint_at_type(kind: str, value: Any, key: str, key_path: KeyPath, holds_tables: bool) -> str:
    """Returns how a file writes what the value seems to be meant for, or ""."""
    literal = _toml_literal(value)
    if kind == "a list" and isinstance(value, dict) and holds_tables:
        return f"Write [[{key}]], with two brackets."
    if kind == "a list" and literal is not None:
        return f"Write {key} = [{literal}]."
    if kind == "a table" and isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return f"Write [{key}], with one bracket."
    if kind == "a table" and isinstance(value, str) and key in _NAMED:
        if isinstance(key_path[-1], int):
            return f"Write [[{key}]] with name = {literal}."
        return f"Write {key} = {{name = {literal}}}."
    # a number or a truth value in quotes
    if isinstance(value, str) and kind in ("whole numbers", "numbers", "true or false"):
        meant = parse_value(value)
        wanted = {"whole numbers": (int,), "numbers": (int, float), "true or false": (bool,)}
        if type(meant) in wanted[kind]:
            return f"Write {key} = {value}, without quotes."
    return ""


def _toml_literal(value: Any) -> str | None:
    """Returns a text, a number or a truth value as TOML spells it; None for anything else."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if len(value) <= 80 else None
    return repr(value) if type(value) in (int, float) else None


def _describe_container(table: Any) -> tuple[range, str]:
    """Returns the positions of an array, and in words what a value has."""
    if isinstance(table, list):
        return range(len(table)), f"positions 0 to {len(table) - 1}"
    return range(0), "keys" if isinstance(table, dict) else "no parts"


def _find_statement_ends(text: str) -> list[tuple[int, int]]:
    """Yields the end of each statement of a valid TOML text, and the lines until there; a line
    without one counts as one.
    """
    ends, depth, lines = [], 0, 0
    for token in _PARTS.finditer(text):
        symbol = token[0]
        depth += (symbol in ("[", "{")) - (symbol in ("]", "}"))
        lines += symbol.count("\n")
        if symbol == "\n" and depth == 0:
            ends.append((token.end(), lines))
    return [*ends, (len(text), lines + 1)]


def _find_unprintable(document: dict[str, Any]) -> tuple[KeyPath, str] | None:
    """Finds a key or a text with control characters other than ends of lines and tabs, and its
    place.
    """
    # (path, value) pairs still to look at
    pending: list[tuple[KeyPath, Any]] = [((), document)]
    while pending:
        key_path, value = pending.pop()
        if isinstance(value, dict):
            if unprintable := next((key for key in value if not is_printable(key)), None):
                return (*key_path, unprintable), unprintable
            pending += [((*key_path, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [((*key_path, i), item) for i, item in enumerate(value)]
        elif isinstance(value, str) and not is_printable(value.replace("\n", "").replace("\t", "")):
            return key_path, value
    return None


def _look_up(document: Any, key_path: KeyPath) -> Any:
    for key in key_path:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _split_parser_message(message: str, text: str) -> tuple[str, int]:
    """Returns the parser's message without its trailing position, and the line."""
    # at the end of the document the parser names no line
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message)
    if match is None:
        return message, 1
    return match[1].replace("'\\n'", "end of line"), int(
        match[2] or max(text.rstrip("\n").count("\n") + 1, 1)
    )
