"""Versions of what numbers depend on besides the configuration."""

import functools
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedax.engine.compilation.identity import random_settings
from fedax.ops.extension import slower

_PACKAGES = ("fedax", "jax", "jaxlib", "equinox", "optax", "numpy")


def packages() -> dict[str, Any]:
    """Returns the versions of the library and of what it computes with."""
    return {package: version(package) for package in _PACKAGES}


def versions() -> dict[str, Any]:
    """Returns the versions of the library and of what it computes with, the machine, JAX's settings
    that affect random numbers and rounding, and the commit of the library's repository, if it runs
    from one.

    Where the native layers are missing, it says what that costs.
    """
    machine = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }
    optional = {"commit": _commit(), "layers": slower()}
    known = {name: text for name, text in optional.items() if text}
    return packages() | machine | known | random_settings()


@functools.cache
def _commit() -> str | None:
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def differing_versions(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns in words which versions of then are not those of now; commits do not count.

    >>> differing_versions({"jax": "0.1", "numpy": "2.0"}, {"jax": "0.2", "numpy": "2.0"})
    ['jax 0.1 then and 0.2 now']
    """
    return [
        f"{name} {then.get(name)} then and {value} now"
        for name, value in now.items()
        if name != "commit" and then.get(name) != value
    ]
