"""Provenance: versions and machine, on which numbers depend besides the configuration."""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from fedax.report import Record

_PACKAGES = ("fedax", "jax", "jaxlib", "equinox", "optax", "numpy")


def packages() -> dict[str, Any]:
    """Versions of the library and of what it computes with."""
    return {package: version(package) for package in _PACKAGES}


def versions() -> dict[str, Any]:
    """Versions of the library and of what it computes with, and the machine."""
    return packages() | {"python": platform.python_version(), "platform": platform.platform(), "cpus": os.cpu_count()}


def others(records: Sequence[Record]) -> list[str]:
    """A sentence for each set of versions among the runs that were taken over from elsewhere."""
    found = Counter(", ".join(f"{name} {value}" for name, value in (run.versions or {}).items()) for run in records)
    return [f"{count} of the runs were made elsewhere: {made}." for made, count in found.items() if made]
