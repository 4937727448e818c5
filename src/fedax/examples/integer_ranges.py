"""Check of whole numbers against what they index, and of labels against the classes there are.

XLA takes the last entry for an index beyond the end, without an error.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import checkify

from fedax.errors import DataError

_FAR = -(2**30)
"""Replaces negative numbers to see whether they are indices: small ones count from the end."""


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
    name: str,
    function: Callable[..., Any],
    start: Callable[[Any], Any],
    splits: Sequence[Mapping[str, Any]],
    call: Callable[..., Any],
) -> None:
    """Refuses examples with whole numbers that a function uses as indices out of range.

    Beyond the end, or below 0.

    The function is evaluated on the examples with the smallest and the largest numbers of every
    array, if it looks anything up. Functions whose attribute `separate` is True are taken at their
    word, and arrays in files are not looked through. So are the classes of `jax.nn.one_hot`, which
    gives zeros for a class that it does not have.

    Args:
        name: its argument of `Task`.
        function: per example.
        start: of the task.
        splits: training, test and other examples.
        call: of compiled programs, see `ProgramOwner.call`.

    Raises:
        DataError: an index or a class out of range.

    Warns:
        UserWarning: a class below 0 in `one_hot`, which may be meant for examples without a class.
    """
    integer_keys = [
        key
        for key, values in splits[0].items()
        if values.dtype.kind in "iu" and not isinstance(values, np.memmap)
    ]
    values = [values for split in splits for values in split.values()]
    if getattr(function, "separate", False) or any(isinstance(v, Tracer) for v in values):
        return
    # What is looked up shows in the traced program; most losses look nothing up and end here.
    probe = {key: jax.ShapeDtypeStruct((3, *v.shape[1:]), v.dtype) for key, v in splits[0].items()}
    text = _jaxpr_text(function, start, probe)
    if f"name={_ONE_HOT}\n" in text:
        real_keys = [
            key
            for key, v in splits[0].items()
            if v.dtype.kind == "f" and v.ndim == 1 and not isinstance(v, np.memmap)
        ]
        _check_classes(name, function, start, _select_extremes(splits, integer_keys + real_keys))
    if not integer_keys or not _looks_up(text):
        return
    rows = _select_extremes(splits, integer_keys)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = start(jax.random.key(0))
    _refuse_out_of_bounds(
        f"Task({name}=...)",
        rows,
        integer_keys,
        lambda rows: _find_index_error(call, function, params, rows),
    )


def check_inputs(
    field: str,
    function: Callable[..., Any],
    params: Any,
    examples: Mapping[str, Any],
    call: Callable[..., Any],
) -> None:
    """Refuses inputs of predictions with whole numbers that are used as indices out of range.

    As `check_indices` does for the examples of a task.

    Args:
        field: names the inputs in messages.
        function: of predictions, per example.
        params: of the model.
        examples: the inputs.
        call: of compiled programs, see `ProgramOwner.call`.

    Raises:
        DataError: an index out of range.
    """
    arrays = {key: np.asarray(values) for key, values in examples.items()}
    integer_keys = [key for key, v in arrays.items() if v.dtype.kind in "iu" and v.size]
    if getattr(function, "separate", False) or not integer_keys:
        return
    rows = _select_extremes([arrays], integer_keys)
    if _looks_up(_jaxpr_text(function, lambda key: params, rows)):
        _refuse_out_of_bounds(
            field, rows, integer_keys, lambda rows: _find_index_error(call, function, params, rows)
        )


def _looks_up(text: str) -> bool:
    """Returns whether the text of a jaxpr has lookups by index."""
    return re.search(r"\b(gather|dynamic_slice)\[", text) is not None


def _refuse_out_of_bounds(
    field: str,
    rows: Mapping[str, np.ndarray],
    integer_keys: Sequence[str],
    find: Callable[[Mapping[str, np.ndarray]], str | None],
) -> None:
    """Refuses examples of which `find` says that an index is out of bounds, or counts from the
    end.
    """
    if (problem := find(rows)) is None:
        negative = [key for key in integer_keys if rows[key].size and rows[key].min() < 0]
        for key in negative:
            # NumPy's small negative indices are valid: they are told by far ones, which no table
            # reaches. Narrow types do not hold those
            values = rows[key].astype(np.promote_types(rows[key].dtype, np.int32))
            if find({**rows, key: np.where(values < 0, _FAR, values)}) is not None:
                problem = f"{key!r} with {int(rows[key].min())} counts from the end"
    if problem is None:
        return
    ranges = ", ".join(
        f"{key!r} from {int(rows[key].min())} to {int(rows[key].max())}"
        for key in integer_keys
        if rows[key].size
    )
    hint = "Number categories from 0 on, and make tables as long as there are categories."
    got = f"whole numbers {ranges}, of which {problem}"
    raise DataError.found(field, got, "indices within tables", hint)


def _jaxpr_text(
    function: Callable[..., Any], start: Callable[[Any], Any], probe: Mapping[str, Any]
) -> str:
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            params = jax.eval_shape(start, jax.random.key(0))
            return str(jax.make_jaxpr(lambda p, b: function(p, b, None))(params, probe))
    except Exception:  # the other probes say what is wrong
        return ""


_ONE_HOT = "_one_hot"
"""The name of the program within `jax.nn.one_hot`."""


def _check_classes(
    name: str,
    function: Callable[..., Any],
    start: Callable[[Any], Any],
    rows: Mapping[str, np.ndarray],
) -> None:
    counts = list[int]()

    def evaluate(rows: Any) -> list[Any]:
        # classes that are given do not depend on the parameters
        shapes = jax.eval_shape(start, jax.random.key(0))
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        program = jax.make_jaxpr(lambda p, b: function(p, b, None))(params, rows)
        calls = list[tuple[int, Any]]()
        _evaluate(program.jaxpr, program.consts, jax.tree.leaves((params, rows)), calls)
        counts.extend(classes for classes, _ in calls)
        return [values for _, values in calls]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        # compiled, so that nothing else is computed
        encodings = jax.jit(evaluate)(rows)
    for classes, values in zip(counts, encodings, strict=True):
        if not values.size:
            continue
        low, high = values.min(), values.max()
        if high >= classes:
            hint = (
                "Give one_hot as many classes as there are, or an example without a class "
                "the number -1."
            )
            got = f"the class {high:g}, for which jax.nn.one_hot(..., {classes}) gives zeros"
            raise DataError.found(
                f"Task({name}=...)", got, f"classes from 0 to {classes - 1}", hint
            )
        if low < 0:
            text = (
                f"Task({name}=...): jax.nn.one_hot(..., {classes}) gives zeros for the class "
                f"{low:g}"
            )
            warnings.warn(f"{text}. Number classes from 0 on if it is one of them.", stacklevel=2)


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], calls: list[tuple[int, Any]]
) -> list[Any]:
    """Evaluates a program; appends the number of classes and the values of every `one_hot`."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def value_of(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]  # literals have no hash

    for equation in jaxpr.eqns:
        inputs = [value_of(var) for var in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            # the program compares with an iota, as long as there are classes
            iota = next((eqn for eqn in inner.jaxpr.eqns if eqn.primitive.name == "iota"), None)
            if equation.params["name"] == _ONE_HOT and iota is not None:
                calls.append((iota.params["shape"][iota.params["dimension"]], inputs[0]))
            results = _evaluate(inner.jaxpr, inner.consts, inputs, calls)
        else:
            bound = equation.primitive.get_bind_params(equation.params)
            # a pair in earlier versions of JAX
            functions, options = bound if isinstance(bound, tuple) else ((), bound)
            results = equation.primitive.bind(*functions, *inputs, **options)
            if not equation.primitive.multiple_results:
                results = [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [value_of(var) for var in jaxpr.outvars]


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


def _find_index_error(
    call: Callable[..., Any], function: Callable[..., Any], params: Any, rows: Mapping[str, Any]
) -> str | None:
    """Returns which index of a function is out of bounds, in words; None if none is."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        try:
            error = call(
                _evaluate_index_checks, function, params, rows, xla_backend_optimization_level="0"
            )
        except Exception:  # an operation that checkify does not know
            return None
    message = error.get()
    # without the line of code
    return message and message.split(" (check", 1)[0].strip().rstrip(".")


def _evaluate_index_checks(function: Callable[..., Any], params: Any, rows: Any) -> checkify.Error:
    checked = checkify.checkify(lambda p, b: function(p, b, None), errors=checkify.index_checks)
    return checked(params, rows)[0]
