"""Arrays as programs take them: types of other libraries, byte orders, integer ranges."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import TracerArrayConversionError

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
        DataError: masked or sparse arrays, complex numbers, text, dates, objects, or rows of
            unequal shapes.

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
            _describe_kind(array),
            "arrays of real or whole numbers",
            _suggest_conversion(array),
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_ndarray(values: Any, where: str) -> np.ndarray:
    """Returns the values as a NumPy array of whatever type.

    Args:
        values: an array of any library that NumPy can read, or nested lists.
        where: names the values in messages.

    Raises:
        DataError: masked or sparse arrays, arrays that are being traced, tensors that NumPy cannot
            read, or rows of unequal shapes.
    """
    if _is_masked(values):
        hint = "Drop these rows, or write .filled(...) and keep the mask as an array beside."
        raise DataError.found(
            where, "a masked array with masked entries", "arrays of which every entry counts", hint
        )
    if isinstance(values, np.ma.MaskedArray):
        values = values.data
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        hint = "Write .toarray(), one row per example."
        raise DataError.found(
            where, f"a sparse array ({type(values).__name__})", "dense arrays", hint
        )
    try:
        # a memory-mapped array stays one
        return np.asanyarray(values) if isinstance(values, np.memmap) else np.asarray(values)
    except TracerArrayConversionError as error:
        hint = "Make data and tasks outside of jax.jit, jax.vmap and jax.grad."
        raise DataError.found(
            where, "an array that is being traced", "concrete arrays", hint
        ) from error
    except (ValueError, OverflowError, TypeError, RuntimeError) as error:
        if "inhomogeneous" in str(error):
            hint = (
                "Pad them, with a mask beside. Several arrays of a client are a dict, such "
                "as {'x': ..., 'y': ...}."
            )
            raise DataError.found(
                where, "rows of unequal shapes", "rows of one shape", hint
            ) from error
        hint = "Write .detach().cpu().numpy()." if getattr(values, "requires_grad", False) else ""
        raise DataError.found(
            where, f"no array ({error})", "arrays of real or whole numbers", hint
        ) from error


def _is_masked(values: Any) -> bool:
    """Returns whether an array, or one in nested lists, has masked entries.

    NumPy would drop the masks of a list.
    """
    if isinstance(values, list | tuple):
        return any(
            _is_masked(value)
            for value in values
            if isinstance(value, list | tuple | np.ma.MaskedArray)
        )
    return isinstance(values, np.ma.MaskedArray) and bool(np.ma.is_masked(values))


def _describe_kind(array: np.ndarray) -> str:
    kinds = {
        "O": "objects",
        "U": "text",
        "S": "bytes",
        "c": "complex numbers",
        "M": "dates",
        "m": "spans of time",
    }
    kind = kinds.get(array.dtype.kind, str(array.dtype))
    if array.dtype.kind in "OUS" and array.size:
        return f"{kind} such as {array.reshape(-1)[:1].tolist()[0]!r}"
    return kind


def _suggest_conversion(array: np.ndarray) -> str:
    if array.dtype.kind in "US":
        return "Number the classes or categories: np.unique(values, return_inverse=True)."
    return "Convert them to numbers." if array.dtype.kind in "OcMm" else ""


def concatenate(arrays: Sequence[np.ndarray], where: str) -> np.ndarray:
    """Concatenates the arrays of all clients.

    Whole numbers stay whole, also of types that NumPy joins as reals.

    Args:
        arrays: at least one.
        where: names the array in messages.

    Raises:
        DataError: whole numbers that 64 bits with a sign cannot hold, beside negative ones.

    >>> concatenate([np.array([1], np.uint64), np.array([-2])], "x").dtype
    dtype('int64')
    """
    kinds = {array.dtype for array in arrays}
    if (
        len(kinds) > 1
        and all(kind.kind in "iub" for kind in kinds)
        and np.result_type(*kinds).kind == "f"
    ):
        for array in arrays:
            check_range(array, np.int64, where)
        arrays = [array.astype(np.int64) for array in arrays]
    return np.concatenate(arrays)


class Frames:
    """Common order of the columns of all clients' data frames: that of the first frame of a name.

    Arrays have no names of columns and pass.
    """

    def __init__(self) -> None:
        self._columns = dict[str, list[Any]]()

    def client(self, arrays: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Returns the arrays of a client with all columns in order.

        Raises:
            DataError: other columns than those of the first frame, one twice, or rows of two arrays
                in different orders.
        """
        labelled = [
            name
            for name, values in arrays.items()
            # frames and series of pandas, whose labels must not be lost
            if type(values) is not np.ndarray and _has_labels(values)
        ]
        if not labelled:
            return arrays
        rows = [(name, list(arrays[name].index)) for name in labelled]
        # the same labels in another order are a mistake; other labels mean nothing here
        for name, labels in rows[1:]:
            if (
                labels != rows[0][1]
                and len(labels) == len(rows[0][1])
                and set(labels) == set(rows[0][1])
            ):
                got = f"the rows of {rows[0][0]!r} in another order, by their labels"
                hint = (
                    "Bring them into one order by .loc, or write .to_numpy() if the labels "
                    "mean nothing."
                )
                raise DataError.found(
                    f"{where}[{name!r}]", got, "rows in the same order in all arrays", hint
                )
        return {
            **arrays,
            **{name: self.array(arrays[name], f"{where}[{name!r}]", name) for name in labelled},
        }

    def array(self, values: Any, where: str, name: str = "x") -> Any:
        """Returns the values with their columns in order; see `client`."""
        if type(values) is np.ndarray or not _has_labels(values) or not hasattr(values, "columns"):
            return values
        labels = list(values.columns)
        if len(set(labels)) < len(labels):
            twice = next(column for i, column in enumerate(labels) if column in labels[:i])
            raise DataError.found(
                where, f"the column {twice!r} twice", "columns of different names"
            )
        columns = self._columns.setdefault(name, labels)
        if labels == columns:
            return values
        if set(labels) != set(columns):
            raise DataError.of(where, labels, f"the columns {columns}, as the first frame has")
        return values[columns]


def _has_labels(values: Any) -> bool:
    """Returns whether the values are a frame or series of pandas, without importing it."""
    return hasattr(values, "index") and hasattr(values, "to_numpy")


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
        DataError: numbers beyond the range of that type.

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
    # what overflows is looked for below
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(copy, values, casting="unsafe")
    narrowed = values.dtype.kind == "f" and kind.itemsize < values.dtype.itemsize
    if narrowed and not np.isfinite(copy).all():
        row = int(
            np.argwhere(~np.isfinite(copy.reshape(len(copy), -1) if copy.ndim else copy[None]))[0][
                0
            ]
        )
        got = f"{values[row] if values.ndim == 1 else 'numbers'} in row {row}, beyond the range"
        raise DataError.found(where, got, f"numbers that {kind.name} can hold")
    copy.flags.writeable = False
    return copy


def check_range(values: np.ndarray, kind: Any, where: str) -> None:
    """Refuses whole numbers that a type of programs cannot hold.

    Args:
        values: any array; real numbers pass.
        kind: the type that the values are to get.
        where: names the values in messages.

    Raises:
        DataError: a number out of range, with its row.
    """
    kind = np.dtype(kind)
    if values.dtype.kind not in "iu" or kind.kind not in "iu" or not values.size:
        return
    limits = np.iinfo(kind)
    if np.can_cast(values.dtype, kind):
        return
    low, high = int(values.min()), int(values.max())
    if limits.min <= low and high <= limits.max:
        return
    bad = high if high > limits.max else low
    row = "" if not values.ndim else f" in row {int(np.argwhere(values == bad)[0][0])}"
    hint = "Number ids from 0 on, or turn quantities into real numbers: .astype(float)."
    allowed = f"whole numbers from {limits.min} to {limits.max}, the type {kind.name} of programs"
    raise DataError.found(where, f"{bad}{row}", allowed, hint)
