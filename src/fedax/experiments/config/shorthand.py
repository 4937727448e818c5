"""The command line's short form of a section: `name:key=value,key=value`."""

import re
import tomllib
from typing import Any

from fedax.core import InvalidInput
from fedax.utils.plugins import FORM, split_reference


def parse_section(text: str) -> dict[str, Any]:
    """Parses a named section.

    >>> parse_section("feddane:mu=0.01,cohorts=shared")
    {'name': 'feddane', 'mu': 0.01, 'cohorts': 'shared'}
    >>> parse_section("mine/half.py:FedHalf:lr=0.5")
    {'name': 'mine/half.py:FedHalf', 'lr': 0.5}

    Raises:
        InvalidInput: a part without `=`, or without a name.
    """
    if reference := split_reference(text):
        return {"name": reference[0], **parse_options(reference[1])}
    name, _, options = text.partition(":")
    if not name.strip() or "=" in name:
        raise InvalidInput.because(
            f"argument {text!r}", "not of the form name:key=value,key=value", "Begin with the name."
        )
    return {"name": name.strip().lower(), **parse_options(options)}


def parse_options(text: str) -> dict[str, Any]:
    """Parses options; values are TOML, or else text. Brackets and braces hold commas together.

    >>> parse_options("cohort=10, batch_size=full, mu=[0.1, 0.2]")
    {'cohort': 10, 'batch_size': 'full', 'mu': [0.1, 0.2]}
    >>> parse_options("codec={name='topk', fraction=0.1}")
    {'codec': {'name': 'topk', 'fraction': 0.1}}
    """
    options: dict[str, Any] = {}
    for option in _split_options(text):
        key, equals, value = option.partition("=")
        if not (equals and key.strip() and value.strip()):
            hint = f"Your own code is named {FORM}; options follow after a colon."
            raise InvalidInput.because(
                f"argument {text!r}", "not of the form key=value,key=value", hint
            )
        options[key.strip()] = parse_value(value.strip())
    return options


def parse_numbers(field: str, text: str) -> list[int]:
    """Parses whole numbers separated by commas.

    >>> parse_numbers("seeds", "0,1,2")
    [0, 1, 2]
    """
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InvalidInput.of(
            field, text, "whole numbers separated by commas, such as 0,1,2"
        ) from error


def _split_options(text: str) -> list[str]:
    options, depth, begin = [], 0, 0
    for position, letter in enumerate(text):
        # commas inside lists and tables do not separate options
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            options.append(text[begin:position])
            begin = position + 1
    return [option for option in [*options, text[begin:]] if option.strip()]


def parse_value(text: str) -> Any:
    """Parses a text as a TOML value, or returns the text itself.

    Numbers separated by commas are a list.

    >>> parse_value("0.5"), parse_value("[1, 2]"), parse_value("1,2"), parse_value("full")
    (0.5, [1, 2], [1, 2], 'full')
    """
    try:
        # 1,2 is no TOML value by itself
        numbers = re.fullmatch(r"[\d\s.+e-]+(,[\d\s.+e-]+)+", text, flags=re.ASCII)
        return tomllib.loads(f"value = [{text}]" if numbers else f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or more digits or brackets than can be read
        return text
