"""Check of whole numbers against what they index, and of labels against the classes there are.

XLA takes the last entry for an index beyond the end, without an error.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.experimental import checkify

from fedax.errors import DataError

FAR = -(2**30)
"""Stands for negative numbers, of which small ones would count from the end of a table."""


LABELS_HINT = "Number classes from 0 on: (y + 1) // 2 for labels -1 and 1, y - 1 for labels from 1."
"""How to write the labels that `find_wrong_label` finds."""


def find_wrong_label(labels: Any, classes: int) -> Any:
    """Returns the first label that is no whole number from 0 to `classes` - 1, or None.

    >>> find_wrong_label([0, 1, 2], 3), int(find_wrong_label([1, -1], 2))
    (None, -1)
    """
    labels = np.asarray(labels)
    is_class = (labels >= 0) & (labels < classes)
    if labels.dtype.kind not in "iub":
        # NumPy knows no remainder of types such as bfloat16
        is_class &= labels.astype(np.float64) % 1 == 0
    return None if is_class.all() else labels[~is_class][0]


def check_labels(field: str, splits: Sequence[Mapping[str, Any]], classes: int) -> None:
    """Refuses examples with a label for which a loss or a score has no class.

    Arrays in files and on other hosts are not looked through.

    Args:
        field: names the loss or the score in the message.
        splits: training, test and other examples with labels y.
        classes: how many there are.

    Raises:
        DataError: such a label.
    """
    for split in splits:
        if not is_in_memory(split["y"]):
            continue
        wrong_label = find_wrong_label(np.asarray(split["y"]), classes)
        if wrong_label is not None:
            allowed = f"labels y from 0 to {classes - 1}"
            raise DataError.found(field, f"the label {wrong_label}", allowed, LABELS_HINT)


def is_in_memory(array: Any) -> bool:
    """Returns whether an array is on this host, and neither in a file nor being traced."""
    return (
        isinstance(array, np.ndarray | jax.Array)
        and not isinstance(array, np.memmap | Tracer)
        and getattr(array, "is_fully_addressable", True)
    )


def check_indices(
    field: str,
    function: Callable[..., Any],
    start: Callable[[Any], Any],
    splits: Sequence[Mapping[str, Any]],
    call: Callable[..., Any],
) -> None:
    """Refuses examples with whole numbers that a function uses as indices out of range.

    Beyond the end, or below 0.

    The function is evaluated on the examples with the smallest and the largest numbers of every
    array, if it looks anything up. Functions whose attribute `separate` is True are taken at their
    word, and arrays in files are not looked through.

    Args:
        field: names the examples in messages.
        function: per example.
        start: makes the parameters from a random key.
        splits: training, test and other examples.
        call: of compiled programs, see `ProgramOwner.call`.

    Raises:
        DataError: an index out of range.
    """
    integer_keys = [
        key
        for key, values in splits[0].items()
        if values.dtype.kind in "iu" and values.size and is_in_memory(values)
    ]
    if getattr(function, "separate", False) or not integer_keys:
        return
    # what is looked up shows in the traced program; most losses look nothing up and end here
    probe = {key: jax.ShapeDtypeStruct((3, *v.shape[1:]), v.dtype) for key, v in splits[0].items()}
    if not _looks_up(function, start, probe):
        return
    rows = _select_extremes(splits, integer_keys)
    ranges = [f"{key!r} from {rows[key].min()} to {rows[key].max()}" for key in integer_keys]
    for key in integer_keys:
        if rows[key].min() < 0:
            # narrow types do not hold the far number
            rows[key] = np.where(rows[key] < 0, np.int32(FAR), rows[key])
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = start(jax.random.key(0))
        try:
            error = call(
                _evaluate_index_checks, function, params, rows, xla_backend_optimization_level="0"
            )
        except Exception:  # an operation that checkify does not know
            return
    if (problem := error.get()) is None:
        return
    # without the line of code, and the far number
    problem = re.sub(r"index -\d+", "a negative index", problem.split(" (check", 1)[0])
    hint = "Number categories from 0 on, and make tables as long as there are categories."
    got = f"whole numbers {', '.join(ranges)}, of which {problem.strip().rstrip('.')}"
    raise DataError.found(field, got, "indices within tables", hint)


def _looks_up(
    function: Callable[..., Any], start: Callable[[Any], Any], probe: Mapping[str, Any]
) -> bool:
    """Returns whether the program of a function has lookups by index."""
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            params = jax.eval_shape(start, jax.random.key(0))
            program = jax.make_jaxpr(lambda p, b: function(p, b, None))(params, probe)
    except Exception:  # the other probes say what is wrong
        return False
    return re.search(r"\b(gather|dynamic_slice)\[", str(program)) is not None


def _select_extremes(
    splits: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> dict[str, np.ndarray]:
    """Returns the examples with the smallest and the largest number of each array."""
    rows_by_key: dict[str, list[np.ndarray]] = {key: [] for key in splits[0]}
    for split in splits:
        for key in keys:
            values = np.asarray(split[key])
            if not values.size:
                continue
            # numbers of an example, to find its row
            width = values.size // len(values)
            for row in (int(values.argmin()) // width, int(values.argmax()) // width):
                # the whole example, because its arrays belong together
                for name in rows_by_key:
                    rows_by_key[name].append(np.asarray(split[name][row]))
    return {key: np.stack(rows) for key, rows in rows_by_key.items()}


def _evaluate_index_checks(function: Callable[..., Any], params: Any, rows: Any) -> checkify.Error:
    checked = checkify.checkify(lambda p, b: function(p, b, None), errors=checkify.index_checks)
    return checked(params, rows)[0]
