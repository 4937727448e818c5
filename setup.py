"""The optional extension: layers for the CPU. Where there is no C++ compiler the package installs without it."""

from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("src/fedax/models/layers/native")

setup(
    ext_modules=[
        Extension(
            "fedax.models.layers._native",
            [str(FOLDER / "layers.cpp")],
            depends=sorted(str(path) for path in FOLDER.glob("*.h")),
            # the third level of optimisation keeps the sums of a tile in registers: the second is three times slower
            extra_compile_args=["-std=gnu++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-g0"],
            optional=True,
        )
    ]
)
