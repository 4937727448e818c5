"""The command line's short form of a section: `name:key=value,key=value`."""

import re
import tomllib
from typing import Any

from fedax.core import InvalidInput
from fedax.utils.plugins import FORM, is_reference


def parse_section(text: str) -> dict[str, Any]:
    """Parses a named section.

    >>> parse_section("feddane:mu=0.01,cohorts=shared")
    {'name': 'feddane', 'mu': 0.01, 'cohorts': 'shared'}
    >>> parse_section("mine/half.py:FedHalf:lr=0.5")
    {'name': 'mine/half.py:FedHalf', 'lr': 0.5}

    Raises:
        InvalidInput: a part without `=`, or without a name.
    """
    parts = text.split(":", 2)
    name = ":".join(parts[:2])
    options = "".join(parts[2:])
    if not is_reference(name):
        name, _, options = text.partition(":")
        name = name.strip().lower()
    if not name or "=" in name:
        raise InvalidInput.of("argument", text, "name:key=value,key=value")
    return {"name": name, **parse_options(options)}


def parse_options(text: str) -> dict[str, Any]:
    """Parses options; values are TOML, or else text. Brackets and braces hold commas together.

    >>> parse_options("cohort=10, batch_size=full, mu=[0.1, 0.2]")
    {'cohort': 10, 'batch_size': 'full', 'mu': [0.1, 0.2]}
    >>> parse_options("codec={name='topk', fraction=0.1}")
    {'codec': {'name': 'topk', 'fraction': 0.1}}
    """
    pieces: list[str] = []
    for piece in text.split(","):
        # a list or a table goes on after the comma
        if pieces and sum(map(pieces[-1].count, "[{")) > sum(map(pieces[-1].count, "]}")):
            pieces[-1] += f",{piece}"
        elif piece.strip():
            pieces.append(piece)
    options: dict[str, Any] = {}
    for piece in pieces:
        key, _, value = piece.partition("=")
        if not key.strip() or not value.strip():
            hint = f"Your own code is named {FORM}; options follow after a colon."
            raise InvalidInput.of("argument", text, "key=value,key=value", hint)
        options[key.strip()] = parse_value(value.strip())
    return options


def parse_value(text: str) -> Any:
    """Parses a text as a TOML value, or returns the text itself.

    Numbers separated by commas are a list.

    >>> parse_value("0.5"), parse_value("[1, 2]"), parse_value("1,2"), parse_value("full")
    (0.5, [1, 2], [1, 2], 'full')
    """
    try:
        # 1,2 is no TOML value by itself
        is_list = re.fullmatch(r"[\d\s.+e-]+(,[\d\s.+e-]+)+", text, flags=re.ASCII)
        return tomllib.loads(f"value = [{text}]" if is_list else f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or more digits or brackets than can be read
        return text
