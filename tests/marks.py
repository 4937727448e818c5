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


def most_slow(cases, every):
    """Returns cases of which every so many stay fast, from the first on."""
    return [case if place % every == 0 else slow(case) for place, case in enumerate(cases)]
