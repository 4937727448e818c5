"""The extension with layers for the CPU: finding it, and calling it from a program."""

import ctypes
import logging
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

VARIABLE = "FEDAX_NATIVE"
"""Environment variable: 0 leaves the extension alone; `plain`, `avx2` and `avx512` ask for no more
than that instruction set."""
CALLS = tuple(f"fedax_{name}" for name in ("lay", "convolve", "affine", "norm", "recur", "shuffle"))
LEVELS = ("plain", "avx2", "avx512")
IMAGES = (3, 1, 2, 0)
"""Memory order of images (example, row, column, channel) in the extension: the example is
innermost."""


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


def slower() -> str | None:
    """Returns what is slower in this process without the extension; None where nothing is."""
    # it replaces XLA's layers on CPUs only
    if status().used or jax.default_backend() != "cpu":
        return None
    remedy = "Install g++ or clang and then fedax again."
    if VARIABLE in status().reason:
        remedy = f"Unset {VARIABLE}."
    return (
        f"native layers: not in use: {status().reason}. Without them a step of the MNIST CNN takes "
        "3 times as long, of the CIFAR CNN 4.6, of LeNet 5, of the LSTM 1.2 times (see "
        f"benchmarks/README.md). {remedy}"
    )


@cache
def _warn_once() -> None:
    logging.getLogger("fedax").warning(slower())


def serves(*operands: Any) -> bool:
    """Returns whether the extension computes with these operands on the default device.

    A process in which it could, but is not there, says so once in the log.
    """
    # it has no half precision, and no mixture
    is_possible = {str(x.dtype) for x in operands} in ({"float32"}, {"float64"})
    if not is_possible or jax.default_backend() != "cpu":
        return False
    if not status().used:
        _warn_once()
    return status().used


def call(
    target: str,
    numbers: Sequence[int],
    operands: Sequence[Any],
    layouts: Sequence[tuple[int, ...] | None],
    shapes: Sequence[tuple[int, ...]],
    result_layouts: Sequence[tuple[int, ...] | None],
    result_types: Sequence[Any] | None = None,
) -> Sequence[Any]:
    """Calls a function of the extension, which has no derivatives by itself.

    The members of a batch follow each other.

    Args:
        target: its name.
        numbers: whole numbers that it gets.
        operands: arrays.
        layouts: of the operands: `IMAGES`, or None for the order of their axes.
        shapes: of the results.
        result_layouts: of the results.
        result_types: of the results, by default that of the first operand.
    """
    types = [operands[0].dtype] * len(shapes) if result_types is None else result_types
    run = jax.ffi.ffi_call(
        target,
        [jax.ShapeDtypeStruct(shape, kind) for shape, kind in zip(shapes, types, strict=True)],
        vmap_method="broadcast_all",
        input_layouts=[_layout(x.ndim, layout) for x, layout in zip(operands, layouts)],
        output_layouts=[
            _layout(len(shape), layout) for shape, layout in zip(shapes, result_layouts)
        ],
    )
    return run(*operands, numbers=np.array(numbers, np.int64))


def _layout(axes: int, layout: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(range(axes)) if layout is None else layout


def fold_batches(
    function: Callable[..., Sequence[Any]],
    by_member: Callable[..., Sequence[Any]],
    axes: Sequence[int | None],
    result_axes: Sequence[int | None],
) -> Callable[..., Sequence[Any]]:
    """Makes a batch more examples where just the operands with examples have it.

    Elsewhere, as where each client has parameters of its own, `by_member` is mapped over the batch.

    Args:
        function: of arrays; returns several.
        by_member: the same in another form.
        axes: of the examples in each operand, None where there is none.
        result_axes: the axis of the examples in each result.
    """
    folding = jax.custom_batching.custom_vmap(function)

    @folding.def_vmap
    def rule(size: int, batched: Sequence[bool], *operands: Any) -> tuple[Any, Any]:
        is_foldable = None not in result_axes and list(batched) == [a is not None for a in axes]
        if is_foldable:
            joined = [x if a is None else _join_batch(x, a) for x, a in zip(operands, axes)]
            outs = folding(*joined)
            results = [_split_batch(x, size, a) for x, a in zip(outs, result_axes, strict=True)]
        else:
            mapped = [0 if is_batched else None for is_batched in batched]
            results = list(jax.vmap(by_member, mapped)(*operands))
        return results, [True] * len(results)

    return folding


def _join_batch(x: Any, axis: int) -> Any:
    moved = jnp.moveaxis(x, 0, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])


def _split_batch(x: Any, size: int, axis: Any) -> Any:
    parted = x.reshape(*x.shape[:axis], size, x.shape[axis] // size, *x.shape[axis + 1 :])
    return jnp.moveaxis(parted, axis, 0)


def derive_by(native: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with the values of `native` and the derivatives of `plain`."""
    function = jax.custom_vjp(native)

    def backward(operands: Any, gradient: Any) -> Any:
        return jax.vjp(plain, *operands)[1](gradient)

    function.defvjp(lambda *operands: (function(*operands), operands), backward)
    return function
