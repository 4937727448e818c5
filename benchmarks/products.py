"""The native layers' products on one thread, in GFLOP/s, beside what the core reaches in a large
product of matrices.

The extension is called as XLA calls it, without XLA. Times are CPU time and the rows run in turns,
so that other programs on the machine disturb the medians less. The core's rate is the better of
NumPy's BLAS and XLA. Products below half of it are listed with the rate at which their arrays move,
beside that of a copy.

    python benchmarks/products.py          # --repeat to change
"""

import argparse
import ctypes
import os
import statistics
import time
from ctypes import POINTER, byref, c_int32, c_int64, c_size_t, c_void_p, pointer
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
import jax
import numpy as np
from threadpoolctl import threadpool_limits

import fedax.ops

KINDS = ("forward", "gradient of the image", "gradient of the kernel")
LAYERS = {  # batch, rows and columns, channels, outputs, kernel, stride, padding
    "LeNet, first": (64, 32, 3, 6, 5, 1, 0),
    "LeNet, second": (64, 14, 6, 16, 5, 1, 0),
    "MNIST CNN, first": (50, 28, 1, 32, 5, 1, 2),
    "MNIST CNN, second": (50, 14, 32, 64, 5, 1, 2),
    "CIFAR CNN, first": (50, 32, 3, 32, 3, 1, 0),
    "CIFAR CNN, second": (50, 15, 32, 64, 3, 1, 0),
    "CIFAR CNN, third": (50, 6, 64, 64, 3, 1, 0),
    "ResNet, 16 channels": (50, 32, 16, 16, 3, 1, 1),
    "ResNet, 16 to 32": (50, 32, 16, 32, 3, 2, 1),
    "ResNet, 32 channels": (50, 16, 32, 32, 3, 1, 1),
    "ResNet, 64 channels": (50, 8, 64, 64, 3, 1, 1),
}
FLOAT32 = 11
EXECUTE = 3


def struct(*fields):
    return type("Frame", (ctypes.Structure,), {"_fields_": [(name, kind) for name, kind in fields]})


HEAD = [("size", c_size_t), ("extension", c_void_p)]
Buffer = struct(
    *HEAD, ("type", c_int32), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64))
)
Buffers = struct(
    *HEAD, ("count", c_int64), ("kinds", c_void_p), ("items", POINTER(POINTER(Buffer)))
)
Numbers = struct(("type", c_int32), ("count", c_size_t), ("data", POINTER(c_int64)))
Attributes = struct(
    *HEAD,
    ("count", c_int64),
    ("kinds", c_void_p),
    ("names", c_void_p),
    ("items", POINTER(POINTER(Numbers))),
)
Call = struct(
    *HEAD, ("api", c_void_p), ("context", c_void_p), ("stage", c_int32),
    ("arguments", Buffers), ("results", Buffers), ("attributes", Attributes),
)  # fmt: skip


class Product:
    """A call of the extension on arrays of its own."""

    def __init__(self, library, kind, shapes, stride, padding):
        self.run = library.fedax_convolve
        self.kept = []
        numbers = self.keep((c_int64 * 5)(kind, stride, stride, padding, padding))
        numbers = self.keep(Numbers(0, 5, numbers))
        attributes = Attributes(
            0, None, 1, None, None, self.keep((POINTER(Numbers) * 1)(pointer(numbers)))
        )
        self.call = Call(
            0, None, None, None, EXECUTE, self.buffers(shapes[:2]), self.buffers(shapes[2:]), attributes
        )  # fmt: skip

    def keep(self, value):
        self.kept.append(value)
        return value

    def buffers(self, shapes):
        made = []
        for shape in shapes:
            data = self.keep(
                np.random.default_rng(0).normal(size=int(np.prod(shape)) + 16).astype(np.float32)
            )
            aligned = data.ctypes.data + -data.ctypes.data % 64
            made.append(
                self.keep(
                    Buffer(
                        0,
                        None,
                        FLOAT32,
                        aligned,
                        len(shape),
                        self.keep((c_int64 * len(shape))(*shape)),
                    )
                )
            )
        items = (POINTER(Buffer) * len(made))(*(pointer(buffer) for buffer in made))
        return Buffers(0, None, len(made), None, self.keep(items))

    def __call__(self):
        self.run(byref(self.call))


def products(library, batch, size, channels, outputs, kernel, stride, padding):
    after = (size + 2 * padding - kernel) // stride + 1
    x = (1, batch, size, size, channels)
    y = (1, batch, after, after, outputs)
    k = (1, kernel, kernel, channels, outputs)
    orders = [(x, k, y), (y, k, x), (x, y, k)]
    flops = 2 * batch * after * after * outputs * channels * kernel * kernel
    moved = sum(4 * int(np.prod(shape)) for shape in (x, k, y))
    return [
        (Product(library, kind, shapes, stride, padding), flops, moved)
        for kind, shapes in enumerate(orders)
    ]


def clocked(run):
    begun = time.process_time()
    run()
    return time.process_time() - begun


def measure(repeat):
    folder = Path(fedax.ops.__file__).parent
    library = ctypes.CDLL(
        str(next(p for s in EXTENSION_SUFFIXES if (p := folder / f"_native{s}").is_file()))
    )
    matrix = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    held = jax.device_put(matrix)
    multiply = jax.jit(lambda m: m @ m)
    source, goal = np.ones((2, 1 << 20), np.float32)
    cells = [triple for sizes in LAYERS.values() for triple in products(library, *sizes)]
    yardsticks = [
        lambda: matrix @ matrix,
        lambda: multiply(held).block_until_ready(),
        lambda: np.copyto(goal, source),
    ]
    times = [[] for _ in (*cells, *yardsticks)]
    with threadpool_limits(1):
        for turn in range(repeat + 1):  # the first one warms up
            for run, own in zip((*(cell[0] for cell in cells), *yardsticks), times):
                seconds = clocked(run)
                own += [seconds] if turn else []
    *medians, blas, xla, copy = [statistics.median(own) for own in times]
    blas = 2 * 1024**3 / blas / 1e9
    xla = 2 * 1024**3 / xla / 1e9
    copy = source.nbytes * 2 / copy / 1e9
    peak = max(blas, xla)
    print(
        f"{repeat} turns, medians; a product of 1024 x 1024 matrices: {blas:.0f} GFLOP/s in "
        f"NumPy's BLAS, {xla:.0f} in XLA"
    )
    print(f"\n| GFLOP/s (of {peak:.0f}) | {' | '.join(KINDS)} |\n|---|---|---|---|")
    rates = [flops / seconds / 1e9 for (_, flops, _), seconds in zip(cells, medians)]
    for row, name in enumerate(LAYERS):
        print(
            f"| {name} | "
            + " | ".join(f"{r:.0f} ({r / peak:.2f})" for r in rates[3 * row : 3 * row + 3])
            + " |"
        )
    print(f"\nBelow half, with the rate of their arrays; a copy of 4 MB: {copy:.0f} GB/s")
    for place, ((_, _, moved), seconds, rate) in enumerate(zip(cells, medians, rates)):
        if rate < peak / 2:
            print(
                f"- {list(LAYERS)[place // 3]}, {KINDS[place % 3]}: "
                f"{moved / seconds / 1e9:.1f} GB/s"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=25)
    measure(parser.parse_args().repeat)
