"""Fails where there is a C++ compiler and the native layers are not in use.

Installing the package never fails for them, so without this nobody would notice that they no longer
compile."""

import os
import shutil
import sys

from fedax.ops.extension import status

COMPILERS = ("c++", "g++", "clang++")


def problem() -> str | None:
    """The reason why the layers are not in use although they could be built, or None."""
    compiler = next(
        filter(None, map(shutil.which, (os.environ.get("CXX", "").split(" ")[0], *COMPILERS))), None
    )
    if compiler is None or status().used:
        return None
    return (
        f"{compiler} is here, and the native layers are not in use: {status().reason}. `python "
        "setup.py build_ext` says why."
    )


if __name__ == "__main__":
    sys.exit(problem())
