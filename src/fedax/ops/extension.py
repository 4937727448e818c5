"""The extension with layers, the order of examples and sums for the CPU: finding it, and telling
XLA about it.
"""

import ctypes
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

import jax

VARIABLE = "FEDAX_NATIVE"
"""Environment variable: 0 leaves the extension alone; `plain`, `avx2` and `avx512` ask for no more
than that instruction set."""
_OF_LAYERS = ("lay", "convolve", "affine", "pool", "norm", "join", "recur")
CALLS = tuple(f"fedax_{name}" for name in (*_OF_LAYERS, "shuffle", "accumulate", "finite"))
LEVELS = ("plain", "avx2", "avx512")


class Status(NamedTuple):
    """Whether the extension is in use, with which instruction set, and why not."""

    used: bool
    level: str
    reason: str


@cache
def status() -> Status:
    """Loads the extension at the first call; never fails."""
    requested = os.environ.get(VARIABLE, "")
    if requested == "0":
        return Status(False, "", f"the environment variable {VARIABLE} is 0")
    candidates = [Path(__file__).with_name(f"_native{suffix}") for suffix in EXTENSION_SUFFIXES]
    files = [path for path in candidates if path.is_file()]
    if not files:
        return Status(
            False,
            "",
            "this installation has no extension, as there was no C++ compiler or the wheel is pure",
        )
    try:
        library = ctypes.CDLL(str(files[0]))
        for name in CALLS:
            jax.ffi.register_ffi_target(
                name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu"
            )
        # -1 keeps the best instruction set of this machine
        level = library.fedax_level(LEVELS.index(requested) if requested in LEVELS else -1)
    except Exception as error:
        # an older system library, another interface: the layers without it still work
        return Status(False, "", f"{files[0].name} cannot be used: {error}")
    return Status(True, LEVELS[level], "")


def usable() -> bool:
    """Returns whether calls of the extension can stand in a program for the default device."""
    return jax.default_backend() == "cpu" and status().used
