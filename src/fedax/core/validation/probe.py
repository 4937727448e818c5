"""A probe of per-example functions on shapes alone: what does not fit is said before anything is
compiled.
"""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.core.bound_model import Bound
from fedax.errors import InvalidInput, shown

_ADVICE: dict[type[Exception], str] = {
    jax.errors.TracerArrayConversionError: "It calls NumPy: use jax.numpy.",
    jax.errors.TracerBoolConversionError: (
        "It decides by the value of an array, with `if`, `and`, `or` or `not`: use jnp.where."
    ),
    jax.errors.TracerIntegerConversionError: (
        "It takes an element of an array for a Python number: use jnp.take, or index a jax.numpy "
        "array."
    ),
    jax.errors.ConcretizationTypeError: (
        "It turns an array into a Python number, with float(), int() or .item(): leave it an array."
    ),
}
"""What to write, by the error of a function that works on arrays of NumPy only. The first type that
fits counts: the last one is the base of others."""
_ROWS = 3
"""Examples of the probe: no natural size of anything, so that what is not per-example shows."""


def check_per_example(
    name: str,
    function: Callable[..., Any],
    start: Callable[[Any], Any],
    probe: dict[str, Any],
    training: bool,
) -> None:
    """Refuses a function that fails, or does not give one real number for each example.

    Args:
        name: its argument of `Task`.
        function: of the trained parameters, the examples and the key.
        start: of the task.
        probe: the shapes of three examples.
        training: whether it is called with a random key too, and has to be differentiable.

    Raises:
        InvalidInput: one of those, or a new state that is not like the state before.
    """
    field, examples = (
        f"Task({name}=...)",
        {key: tuple(value.shape[1:]) for key, value in probe.items()},
    )
    failure = f"a function that fails on examples of shapes {examples}"
    try:
        params = jax.eval_shape(start, jax.random.key(0))
    except Exception as error:
        raise InvalidInput.found(
            "Task(start=...)",
            "a starting point that cannot be made",
            "a function of a key",
            _describe_error(error),
        ) from error
    values, failed = _eval_shapes(function, params, probe, None)
    # our own models work with a key if they do without
    calls_with_key = training and not getattr(function, "separate", False)
    in_training = (
        _eval_shapes(function, params, probe, jax.random.key(0))
        if calls_with_key
        else (values, None)
    )
    if failed is not None:
        hint = ""
        if training and in_training[1] is None:
            hint = " In evaluation the key is None, which means: no dropout, no augmentation."
        raise InvalidInput.found(
            field, failure, "a function that fits", _describe_error(failed, examples) + hint
        ) from failed
    if in_training[1] is not None:
        got = (
            "a function that fails in training, with a random key, on examples of shapes "
            f"{examples}"
        )
        raise InvalidInput.found(
            field, got, "a function that fits", _describe_error(in_training[1], examples)
        ) from in_training[1]
    # traced twice, what changes something outside gives two programs
    if calls_with_key and _jaxpr_text(function, params, probe) != _jaxpr_text(
        function, params, probe
    ):
        hint = (
            "It changes something outside, such as a list or a module that it closes over: pass "
            "that as parameters or state."
        )
        raise InvalidInput.found(
            field, "a function that is another one when it is called again", "pure functions", hint
        )
    for result in (values, in_training[0]):
        _check_values(field, result[0], real=training)
    if isinstance(function, Bound) and function.state is not None:
        _check_state(field, function.state, in_training[0][1])


def check_rows(
    name: str, function: Callable[..., Any], start: Callable[[Any], Any], probe: dict[str, Any]
) -> None:
    """Refuses a function that fails in evaluation, or gives anything but an array of one row per
    example.
    """
    examples = {key: tuple(value.shape[1:]) for key, value in probe.items()}
    values, failed = _eval_shapes(function, jax.eval_shape(start, jax.random.key(0)), probe, None)
    if failed is not None:
        got = f"a function that fails on examples of shapes {examples}"
        raise InvalidInput.found(
            f"Task({name}=...)", got, "a function that fits", _describe_error(failed, examples)
        ) from failed
    shape = getattr(values[0], "shape", None)
    if not shape or shape[0] != _ROWS:
        got = type(values[0]).__name__ if shape is None else f"shape {shape} for 3 examples"
        raise InvalidInput.found(
            f"Task({name}=...)", got, "one row per example, shape (batch, ...)"
        )


def _eval_shapes(function: Any, params: Any, probe: Any, key: Any) -> tuple[Any, Exception | None]:
    """Returns the shapes of the values and of the new state, and the error if the function
    fails.
    """

    def evaluate(params: Any, examples: Any) -> Any:
        if isinstance(function, Bound):
            return function.update(params, examples, key)
        return function(params, examples, key), None

    settings = contextlib.ExitStack()
    # as the other probes of training: settings that are stricter than JAX's are kept where it runs
    if key is not None:
        settings.enter_context(jax.numpy_dtype_promotion("standard"))
        settings.enter_context(jax.numpy_rank_promotion("allow"))
    with settings:
        try:
            return jax.eval_shape(evaluate, params, probe), None
        except Exception as error:
            return None, error


def _jaxpr_text(function: Any, params: Any, probe: Any) -> str:
    """Returns the text of a function's jaxpr in evaluation, without addresses."""
    # functions in a jaxpr's text have their addresses
    return re.sub(
        r"0x[0-9a-f]+", "", str(jax.make_jaxpr(lambda p, b: function(p, b, None))(params, probe))
    )


def _check_values(field: str, values: Any, real: bool) -> None:
    if getattr(values, "shape", None) != (_ROWS,):
        got = (
            f"shape {values.shape} for 3 examples"
            if hasattr(values, "shape")
            else type(values).__name__
        )
        hint = "Return one number per example, without a mean or a sum."
        if isinstance(values, tuple):
            hint = (
                "Only a loss that takes the argument `state` returns a new state beside its values."
            )
        raise InvalidInput.found(field, got, "one value per example, shape (batch,)", hint)
    if real and not jnp.issubdtype(values.dtype, jnp.floating):
        raise InvalidInput.found(
            field,
            f"values of type {values.dtype}",
            "real numbers",
            "A loss has to have a gradient.",
        )


def _check_state(field: str, before: Any, after: Any) -> None:
    """Refuses a new state of another form than the one before."""
    old, new = (jax.tree_util.tree_flatten_with_path(tree) for tree in (before, after))
    if old[1] != new[1]:
        names = [[jax.tree_util.keystr(path) for path, _ in side[0]] for side in (old, new)]
        raise InvalidInput.of(
            field, names[1], f"a new state with the leaves of the one before, {names[0]}"
        )
    for (path, leaf), (_, result) in zip(old[0], new[0], strict=True):
        expected, got = (
            (np.shape(leaf), str(jnp.result_type(leaf))),
            (result.shape, str(result.dtype)),
        )
        if expected != got:
            where = f"{field}, state{jax.tree_util.keystr(path)}"
            raise InvalidInput.of(
                where,
                got,
                f"{expected}, as before the step",
                "Write .astype, or another starting state.",
            )


def _describe_error(error: Exception, examples: dict[str, Any] | None = None) -> str:
    """Returns the first line of an error as a sentence."""
    if isinstance(error, KeyError) and examples is not None:
        return (
            f"There is no {shown(error.args[0] if error.args else None)} among the examples' "
            f"arrays {sorted(examples)}."
        )
    text = str(error).strip().splitlines()
    reason = (
        f"{type(error).__name__}: {text[0].rstrip('.')}." if text else type(error).__name__ + "."
    )
    # functions of PyTorch, and `torch.tensor`, on a tracer
    if any(phrase in reason for phrase in ("must be Tensor, not", "__dlpack_device__")):
        return f"{reason} It calls PyTorch: write it with optax or jax.numpy."
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), "")
    return f"{reason} {advice}".rstrip()
