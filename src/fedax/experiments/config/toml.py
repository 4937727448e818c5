"""TOML text, and errors that name the file."""

import contextlib
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from fedax.core import InvalidInput, SpecError
from fedax.errors import shown
from fedax.experiments.config.shorthand import parse_value
from fedax.utils.files import read

KeyPath = tuple[str | int, ...]
"""The path of a value in a document: keys, and positions in arrays."""
Model = TypeVar("Model", bound=BaseModel)


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parses TOML text.

    Args:
        text: of the file.
        name: the file's name, for messages.

    Raises:
        SpecError: malformed TOML, or nested too deeply.
    """
    with spec_errors(name):
        return tomllib.loads(text)


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        SpecError: a file that cannot be read, is not UTF-8, or is malformed.
    """
    return parse_toml(read_source(path), str(path))


def read_source(path: Path) -> str:
    """Reads the text of a TOML file.

    Raises:
        SpecError: a file that cannot be read, or is not UTF-8.
    """
    with spec_errors(str(path)):
        return read(path).decode("utf-8-sig")


@contextlib.contextmanager
def spec_errors(name: str) -> Iterator[None]:
    """Puts the name of a file before errors in reading it or in its content."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{name}: {error}") from error


def validate(model: type[Model], document: Any) -> Model:
    """Makes a pydantic model of a document.

    Raises:
        InvalidInput: the first problem, with its key.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InvalidInput):
            raise cause from error
        field = ".".join(map(str, first["loc"]))
        got = "nothing" if first["type"] == "missing" else shown(first["input"])
        raise InvalidInput.found(field, got, first["msg"]) from error


def override(document: dict[str, Any], setting: str) -> None:
    r"""Replaces or adds one value, as `--set` says it: `path=value`, with keys and positions
    (from 0) joined by dots.

    >>> document = {"algorithm": [{"name": "fedprox"}]}
    >>> override(document, "algorithm.0.mu=0.5")
    >>> document["algorithm"][0]["mu"]
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
    place_value(document, key_path, parsed, f"--set {setting}")


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
    except (AttributeError, LookupError, TypeError) as error:
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
