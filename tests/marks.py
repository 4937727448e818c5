"""Marks of single cases."""

from typing import Any

import pytest


def slow(*values: Any, **options: Any) -> Any:
    """Returns a case that `make slow` runs, and `make test` leaves out: others say the same
    sooner."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)


def quick(values: Any, *names: str) -> list[Any]:
    """Returns cases by name: those of some names as they are, the others as slow ones."""
    return [name if name in names else slow(name) for name in values]
