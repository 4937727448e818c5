"""A probe of per-example functions: the value of one example must not depend on the others of its
batch.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedax.core.bound_model import Bound
from fedax.errors import InvalidInput

_OPERATIONS = 40
"""Up to so many, and without loops, a function is evaluated operation by operation: those are
compiled once for all functions."""
_HINT = (
    "Batches are padded and cut into pieces, so a mean, a batch statistic or a division by the "
    "batch's length would be another "
    "number on every engine. Normalise over features, or by fixed statistics, and leave the "
    "mean over examples to the engine."
)
_HINT_PLACE = (
    "An example is in another place on every engine and with every microbatch. A weight of an "
    "example belongs into the data, as an "
    "array beside x, and noise is drawn from the argument `key`, not from a key that the "
    "function makes."
)
_OTHERS, _PLACE = "the others of its batch", "its place in the batch"
_REPEATS, _SMALL = 11, 1 << 14
"""Three examples of at most so many numbers are evaluated so many times over, in one batch; larger
ones twice."""
_IN_EVALUATION = (
    "In evaluation, with the key None, use the running statistics of the state, "
    "not those of the batch."
)


_Pair = tuple[str, np.ndarray, np.ndarray]
"""The change in words, and the values of the same examples before and after."""
_PROBED: dict[Any, list[_Pair]] = {}
"""The pairs of the functions that were probed last; they do not depend on the data."""
_MOST_PROBED = 16


def check_separate(
    name: str,
    function: Callable[..., Any],
    start: Callable[[Any], Any],
    arrays: Any,
    training: bool = True,
) -> None:
    """Refuses a function of which an example's value changes with the other examples, their number,
    or its place in the batch.

    It is evaluated on three examples in several orders, repeated and among others, with and without
    a key, once for a function. Those whose attribute `separate` is True are taken at their word.
    One that fails there, or gives no finite number, is let through.

    Args:
        name: its argument of `Task`.
        function: per example.
        start: of the task.
        arrays: examples.
        training: whether it must not couple them in training either; always in evaluation.

    Raises:
        InvalidInput: it couples the examples of a batch, or looks at their places.
    """
    # within a trace there are no numbers to evaluate on
    if getattr(function, "separate", False) or any(
        isinstance(values, Tracer) for values in arrays.values()
    ):
        return
    forms = tuple(
        (key, values.shape[1:], str(values.dtype)) for key, values in sorted(arrays.items())
    )
    # a `Bound` would be held with all its arrays
    key: Any = None if isinstance(function, Bound) else (function, type(start), forms, training)
    try:
        pairs = _PROBED.get(key)
    except TypeError:  # not hashable, so not remembered
        key = pairs = None
    if pairs is None:
        pairs = _evaluate_pairs(function, start, arrays, training)
    if key is not None:
        _PROBED[key] = pairs
        # the oldest goes
        if len(_PROBED) > _MOST_PROBED:
            _PROBED.pop(next(iter(_PROBED)), None)
    for reason, expected, values in pairs:
        differs = _differences(expected, values)
        if differs.any():
            first = np.argmax(differs)
            numbers = f"{expected.flat[first]:.6g} against {values.flat[first]:.6g}"
            got = f"one whose value for an example changes with {reason} ({numbers})"
            hint = {_PLACE: _HINT_PLACE}.get(reason, _HINT if training else _IN_EVALUATION)
            raise InvalidInput.found(f"Task({name}=...)", got, "functions of single examples", hint)


def _tolerance(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.finfo(values.dtype).eps) * np.maximum(np.abs(values), 1)


def _evaluate_pairs(
    function: Callable[..., Any], start: Callable[[Any], Any], arrays: Any, training: bool
) -> list[_Pair]:
    """Returns pairs of values of the same examples that should be equal."""
    batch, changed = _make_batches(arrays)
    order = _draw_order(batch)
    # two examples of which the first is unchanged, and all three at many places
    changed_pair, repeated = _take_rows(changed, [0, 1]), _take_rows(batch, order)
    pairs = list[_Pair]()
    lenient_settings = (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        np.errstate(all="ignore"),
    )
    # evaluates at once even within a trace; `check_per_example` reports functions that fail
    with contextlib.ExitStack() as stack, contextlib.suppress(Exception):
        for setting in (jax.ensure_compile_time_eval(), *lenient_settings):
            stack.enter_context(setting)
        # not at the starting point alone: many models give equal values for all examples there
        params = start(jax.random.key(0))
        rng = np.random.default_rng(0)
        perturbed = jax.tree.map(
            lambda p: p + jnp.asarray(0.1 * rng.normal(size=jnp.shape(p)), jnp.result_type(p)),
            params,
        )
        evaluate = _make_evaluator(function, perturbed, batch)
        values = evaluate(perturbed, batch, None)
        # away from the start the function may leave its domain
        if not np.isfinite(values[0]).all():
            perturbed, values = params, evaluate(params, batch, None)
        pairs.append((_OTHERS, values[:1], evaluate(perturbed, changed_pair, None)[:1]))
        # what couples examples depends on places too, and one reason is enough
        if not _differences(*pairs[0][1:]).any():
            pairs.append((_PLACE, values[order], evaluate(perturbed, repeated, None)))
        key = jax.random.key(1)
        if training and _uses_key(function, perturbed, batch, key):
            pairs.append(
                (
                    _OTHERS,
                    evaluate(perturbed, batch, key)[:1],
                    evaluate(perturbed, changed, key)[:1],
                )
            )
    return pairs


def _draw_order(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Returns an order of three examples in a longer batch, in which each has many places."""
    small = sum(values.size for values in batch.values()) <= _SMALL
    rng = np.random.default_rng(1)
    # at first each of the three stands at another place than its own
    return np.concatenate(
        [[2, 0, 1], *(rng.permutation(3) for _ in range(_REPEATS - 1 if small else 1))]
    )


def _take_rows(batch: dict[str, np.ndarray], rows: Any) -> dict[str, np.ndarray]:
    return {key: values[rows] for key, values in batch.items()}


def _differences(expected: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns where values differ by more than rounding; what is not finite is passed over."""
    finite = np.isfinite(expected) & np.isfinite(values)
    with np.errstate(all="ignore"):
        return finite & (np.abs(expected - values) > _tolerance(expected))


def _make_batches(arrays: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns three examples, and three of which only the first is the same."""
    batch, changed = {}, {}
    for key, values in arrays.items():
        rows = np.asarray(values[: min(3, len(values))])
        # a client may have fewer than three examples; some then occur twice
        rows = rows[[0, len(rows) // 2, -1]]
        others = rows[[0, 2, 1]]
        # other integers may be out of range, such as labels, so they are only exchanged
        if rows.dtype.kind not in "iub":
            others = np.concatenate([rows[:1], (others[1:] * 0.5 + 0.25).astype(rows.dtype)])
        batch[key], changed[key] = rows, others
    return batch, changed


def _make_evaluator(function: Callable[..., Any], params: Any, batch: Any) -> Callable[..., Any]:
    """Returns a function that evaluates `function`; long ones are compiled, uncached."""
    equations = jax.make_jaxpr(lambda p, b: function(p, b, None))(params, batch).eqns
    # a loop has few equations and many operations
    loops = any(equation.primitive.name in ("scan", "while", "cond") for equation in equations)
    if len(equations) <= _OPERATIONS and not loops:
        return lambda *arguments: _to_float_array(function(*arguments))

    arrays, code = eqx.partition(function, eqx.is_array)  # arguments, not constants of the program

    def evaluate_compiled(params: Any, batch: Any, key: Any) -> Any:
        program = jax.jit(lambda h, p, b: eqx.combine(h, code)(p, b, key)).lower(
            arrays, params, batch
        )
        # evaluated only a few times, so that compiling is what takes time
        options: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
        return _to_float_array(program.compile(options)(arrays, params, batch))

    return evaluate_compiled


def _to_float_array(value: Any) -> np.ndarray:
    """Converts values to NumPy; half precision of any format becomes float16."""
    array = np.asarray(value)
    return (
        array
        if array.dtype.name in ("float32", "float64")
        else array.astype(np.float32).astype(np.float16)
    )


def _uses_key(function: Callable[..., Any], params: Any, batch: Any, key: Any) -> bool:
    """Returns whether a function's jaxpr differs with and without a key."""
    texts = [
        str(jax.make_jaxpr(lambda p, b, k=k: function(p, b, k))(params, batch)) for k in (None, key)
    ]
    return texts[0] != texts[1]
