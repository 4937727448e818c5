"""The optional extension: layers for the CPU. Where there is no C++ compiler the package installs
without it. With FEDAX_NATIVE=0 nothing is compiled, and the wheel is one for every system.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/fedax/ops/native")


class BuildAtOnce(build_ext):
    """Compiles the files of an extension at the same time, which takes half as long on two
    cores.
    """

    def build_extensions(self):
        compile_all = self.compiler.compile

        def at_once(sources, *args, **kwargs):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = list(
                    pool.map(lambda source: compile_all([source], *args, **kwargs), sources)
                )
            return [item for items in made for item in items]

        self.compiler.compile = at_once
        super().build_extensions()


setup(
    cmdclass={"build_ext": BuildAtOnce},
    ext_modules=[]
    if os.environ.get("FEDAX_NATIVE") == "0"
    else [
        Extension(
            "fedax.ops._native",
            sorted(str(path) for path in FOLDER.glob("*.cpp")),
            depends=sorted(str(path) for path in FOLDER.glob("*.h")),
            # the third level of optimisation keeps the sums of a tile in registers: the second is
            # three times slower
            extra_compile_args=[
                "-std=gnu++17",
                "-O3",
                "-ffp-contract=fast",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-g0",
            ],
            optional=True,
        )
    ],
)
