"""The house style of docstrings in the form that mkdocstrings shows: examples as code, one line for
each of several arguments."""

import functools
import importlib
import inspect
import re
from typing import Any

import griffe


class HouseStyle(griffe.Extension):
    """Rewrites docstrings as they are read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is None and obj.path in _entries():
            obj.docstring = griffe.Docstring(_entries()[obj.path], parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)


@functools.cache
def _entries() -> dict[str, str]:
    """The docstrings of public functions and classes by their paths: some are made when their
    module is imported."""
    import reference

    found = {}
    for name in reference.MODULES:
        for value in reference.public(importlib.import_module(name)).values():
            found[f"{value.__module__}.{value.__qualname__}"] = inspect.getdoc(value) or ""
    return found


def shown(text: str) -> str:
    """A docstring as it is parsed.

    >>> print(shown("A.\\n\\nArgs:\\n    a, b: Two."))
    A.
    <BLANKLINE>
    Args:
        a: Two.
        b: Two.
    """
    return _options(_separate(_formulas(_fenced(_plain_examples(text)))))


def _plain_examples(text: str) -> str:
    """With examples of one line of code in fences."""
    return re.sub(
        r"^Example:\n {4}(\w[\w. ]*[=(][^\n]*\))$",
        r"Example:\n    ```python\n    \1\n    ```",
        text,
        flags=re.MULTILINE,
    )


def _fenced(text: str) -> str:
    """With interactive examples in fences."""
    lines: list[str] = []
    inside = None
    for line in text.splitlines():
        space = line[: len(line) - len(line.lstrip())]
        if inside is None and line.lstrip().startswith(">>>"):
            inside = space
            lines += ["", f"{space}```pycon"]
        elif inside is not None and not line.strip():
            lines.append(f"{inside}```")
            inside = None
        lines.append(line)
    return "\n".join([*lines, *([] if inside is None else [f"{inside}```"])])


def _formulas(text: str) -> str:
    """With displayed formulas as paragraphs."""

    def block(match: re.Match[str]) -> str:
        space = match[1]
        return f"\n\n{space}$$ {' '.join(match[2].split())} $$\n\n{space}"

    return re.sub(r"(?<=\n)([ ]*)\$\$(.+?)\$\$[ ]*\n?[ ]*", block, text, flags=re.DOTALL)


def _separate(text: str) -> str:
    def each(match: re.Match[str]) -> str:
        return "\n".join(f"    {name}: {match[2]}" for name in match[1].split(", "))

    return re.sub(r"^    ((?:\w+, )+\w+): (.*(?:\n {8}.*)*)", each, text, flags=re.MULTILINE)


def _options(text: str) -> str:
    """The section of `run`'s keyword arguments as a list."""
    head, mark, rest = text.partition("\nOptions:\n")
    if not mark:
        return text
    body, end, after = rest.partition("\n\n")
    listed = re.sub(r"^    (\w+): ", r"    - `\1`: ", body, flags=re.MULTILINE)
    return f"{head}\nOptions:\n\n{listed}{end}{after}"
