"""A check of whole numbers against what they index: XLA takes the last entry for an index beyond the end, without a word."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.experimental import checkify

from fedax.errors import DataError

_FAR = -(2**30)
"""In place of negative numbers, to see whether they are indices: small ones count from the end."""


def check_indices(
    name: str, function: Callable[..., Any], start: Callable[[Any], Any], parts: Sequence[Mapping[str, Any]]
) -> None:
    """Refuses examples with whole numbers that a function takes as indices beyond the end, or below 0.

    The function is evaluated on the examples with the smallest and the largest numbers of every array, if it looks anything up.
    Functions whose attribute `separate` is True are taken at their word, and arrays in files are not looked through.

    Args:
        name: its argument of `Task`.
        function: per example.
        start: of the task.
        parts: training, test and other examples.

    Raises:
        DataError: an index out of range.
    """
    whole = [key for key, values in parts[0].items() if values.dtype.kind in "iu" and not isinstance(values, np.memmap)]
    values = [values for part in parts for values in part.values()]
    if not whole or getattr(function, "separate", False) or any(isinstance(v, Tracer) for v in values):
        return
    probe = {key: jax.ShapeDtypeStruct((3, *v.shape[1:]), v.dtype) for key, v in parts[0].items()}
    if not _looks_up(function, start, probe):
        return
    rows = _extremes(parts, whole)
    if (found := _out_of_bounds(function, start, rows)) is None:
        negative = [key for key in whole if rows[key].size and rows[key].min() < 0]
        for key in negative:
            far = rows | {key: np.where(rows[key] < 0, np.asarray(_FAR).astype(rows[key].dtype), rows[key])}
            if rows[key].dtype.itemsize >= 4 and _out_of_bounds(function, start, far) is not None:
                found = f"{key!r} with {int(rows[key].min())} counts from the end"
    if found is not None:
        ranges = ", ".join(
            f"{key!r} from {int(rows[key].min())} to {int(rows[key].max())}" for key in whole if rows[key].size
        )
        hint = "Number categories from 0 on, and make tables as long as there are categories."
        raise DataError.found(
            f"Task({name}=...)", f"whole numbers {ranges}, of which {found}", "indices within tables", hint
        )


def _looks_up(function: Callable[..., Any], start: Callable[[Any], Any], probe: Mapping[str, Any]) -> bool:
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            params = jax.eval_shape(start, jax.random.key(0))
            text = str(jax.make_jaxpr(lambda p, b: function(p, b, None))(params, probe))
    except Exception:  # the other probes say what is wrong
        return False
    return re.search(r"\b(gather|dynamic_slice)\[", text) is not None


def _extremes(parts: Sequence[Mapping[str, Any]], whole: Sequence[str]) -> dict[str, np.ndarray]:
    """The examples with the smallest and the largest number of each array."""
    found: dict[str, list[np.ndarray]] = {key: [] for key in parts[0]}
    for part in parts:
        for key in whole:
            values = np.asarray(part[key])
            if not values.size:
                continue
            width = values.size // len(values)
            for row in (int(values.argmin()) // width, int(values.argmax()) // width):
                for other in found:
                    found[other].append(np.asarray(part[other][row]))
    return {key: np.stack(rows) for key, rows in found.items()}


def _out_of_bounds(function: Callable[..., Any], start: Callable[[Any], Any], rows: Mapping[str, np.ndarray]) -> str | None:
    """Returns what is out of bounds, in words; None if nothing is."""
    key = tuple((name, values.shape, str(values.dtype), values.tobytes()) for name, values in sorted(rows.items()))
    try:
        return _evaluated(_Case(function, start, rows), key)
    except TypeError:  # a function without a hash
        return _Case(function, start, rows).message()


class _Case:
    """An evaluation that is the same for the same function; the examples are told apart by their own key."""

    def __init__(self, function: Any, start: Any, rows: Mapping[str, np.ndarray]) -> None:
        self.function, self.start, self.rows = function, start, rows

    def __hash__(self) -> int:
        return hash((self.function, type(self.start)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Case) and (self.function, type(self.start)) == (other.function, type(other.start))

    def message(self) -> str | None:
        held, code = eqx.partition(self.function, eqx.is_array)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            params = self.start(jax.random.key(0))

            def values(held: Any, params: Any, rows: Any) -> Any:
                return eqx.combine(held, code)(params, rows, None)

            try:
                checked = jax.jit(checkify.checkify(values, errors=checkify.index_checks))
                options: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
                error, _ = checked.lower(held, params, self.rows).compile(options)(held, params, self.rows)
                message = error.get()
            except Exception:  # an operation that checkify does not know
                return None
        return None if message is None else message.split(" (check", 1)[0].strip().rstrip(".")


@functools.lru_cache(16)
def _evaluated(case: _Case, key: Any) -> str | None:
    del key
    message = case.message()
    del case.rows
    return message
