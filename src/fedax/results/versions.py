"""Versions of what numbers depend on besides the configuration."""

import os
import platform
from importlib.metadata import version
from typing import Any

_PACKAGES = ("fedax", "jax", "jaxlib", "equinox", "optax", "numpy")


def packages() -> dict[str, Any]:
    """Returns the versions of the library and of what it computes with."""
    return {package: version(package) for package in _PACKAGES}


def versions() -> dict[str, Any]:
    """Returns the versions of the library and of what it computes with, and the machine."""
    return packages() | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }
