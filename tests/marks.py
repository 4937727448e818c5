"""Marks of single cases."""

from typing import Any

import pytest


def thorough(*values: Any, **options: Any) -> Any:
    """A case that `make laws` runs, and `make test` leaves out: others say the same sooner."""
    return pytest.param(*values, marks=pytest.mark.thorough, **options)


def quick(values: Any, *names: str) -> list[Any]:
    """Cases by name: those of some names, and the others as thorough ones."""
    return [name if name in names else thorough(name) for name in values]
