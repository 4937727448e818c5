"""Arrays as programs take them: types of other libraries, byte orders, integer ranges."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.errors import DataError

ALIGNED = 64
"""Bytes: arrays that begin at a multiple are shared by all CPU devices, where others are copied for
each.
"""
_KINDS = "fiub"


def as_array(values: Any, where: str) -> np.ndarray:
    """Returns the values as a plain NumPy array of real numbers, whole numbers or truth values.

    Types of half precision that NumPy does not know, such as bfloat16, become 32-bit floats; bytes
    come in this machine's order.

    Args:
        values: an array of any library that NumPy can read, or nested lists.
        where: names the values in messages.

    Raises:
        DataError: masked or sparse arrays, complex numbers, text, dates, objects, or what NumPy
            refuses, such as rows of unequal shapes.

    >>> as_array(jnp.ones(2, jnp.bfloat16), "x").dtype
    dtype('float32')
    """
    # the usual case: neither copied nor looked at
    if type(values) is np.ndarray and values.dtype.kind in _KINDS and values.dtype.isnative:
        return values
    array = as_ndarray(values, where)
    # types of ml_dtypes
    if array.dtype.kind == "V" and array.dtype.names is None and array.dtype.isbuiltin == 2:
        array = array.astype(np.float32 if jnp.issubdtype(array.dtype, jnp.floating) else np.int32)
    if array.dtype.kind not in _KINDS:
        raise DataError.found(
            where,
            f"{type(values).__name__} of type {array.dtype}",
            "arrays of real or whole numbers",
            "Number categories by np.unique(values, return_inverse=True).",
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def as_ndarray(values: Any, where: str) -> np.ndarray:
    """Returns the values as a NumPy array of any type.

    Args:
        values: an array of any library that NumPy can read, or nested lists.
        where: names the values in messages.

    Raises:
        DataError: masked entries, whose mask NumPy would drop, and what NumPy refuses.
    """
    arrays = values if isinstance(values, list | tuple) else [values]
    if any(map(np.ma.is_masked, arrays)):
        hint = "Drop these rows, or write .filled(...) and keep the mask as an array beside."
        raise DataError.found(where, "masked entries", "arrays of which every entry counts", hint)
    try:
        # a memory-mapped array stays one
        return np.asanyarray(values) if isinstance(values, np.memmap) else np.asarray(values)
    except (ValueError, OverflowError, TypeError, RuntimeError) as error:
        raise DataError.because(where, str(error)) from error


def canonical(values: Any, where: str = "data") -> np.ndarray:
    """Returns an array in the type that programs use, as a read-only aligned copy.

    Real numbers get JAX's default float type, whole numbers keep theirs (64 bits are narrowed
    unless enabled).

    CPU devices use the result without a further copy. Memory-mapped arrays of that type stay in
    their file.

    Args:
        values: an array.
        where: names it in messages.

    Raises:
        DataError: whole numbers beyond the range of that type.

    >>> canonical(np.asfortranarray([[1, 2], [3, 4]], dtype=">i2")).tolist()
    [[1, 2], [3, 4]]
    """
    values = np.asanyarray(values)
    kind = np.dtype(
        jax.dtypes.canonicalize_dtype(
            float if values.dtype.kind == "f" else values.dtype.newbyteorder("=")
        )
    )
    if isinstance(values, np.memmap) and values.dtype == kind:
        return values
    check_range(values, kind, where)
    # room to begin at a multiple of ALIGNED
    raw = np.empty(values.size * kind.itemsize + ALIGNED, np.uint8)
    begin = -raw.ctypes.data % ALIGNED
    copy = raw[begin : begin + values.size * kind.itemsize].view(kind).reshape(values.shape)
    # what overflows becomes infinite, which checks of examples refuse
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(copy, values, casting="unsafe")
    copy.flags.writeable = False
    return copy


def check_range(values: np.ndarray, kind: Any, where: str) -> None:
    """Refuses whole numbers that a type of programs cannot hold.

    Args:
        values: any array; real numbers pass.
        kind: the type that the values are to get.
        where: names the values in messages.

    Raises:
        DataError: a number out of range.
    """
    kind = np.dtype(kind)
    is_whole = values.dtype.kind in "iu" and kind.kind in "iu"
    if not is_whole or not values.size or np.can_cast(values.dtype, kind):
        return
    limits = np.iinfo(kind)
    low = int(values.min())
    high = int(values.max())
    if low < limits.min or high > limits.max:
        hint = "Number ids from 0 on, or turn quantities into real numbers: .astype(float)."
        allowed = f"{limits.min} to {limits.max}, the type {kind.name} of programs"
        raise DataError.found(where, f"whole numbers from {low} to {high}", allowed, hint)
