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
    field = f"Task({name}=...)"
    params = jax.eval_shape(start, jax.random.key(0))
    # our own models work with a key if they do without
    calls_with_key = training and not getattr(function, "separate", False)
    if calls_with_key:
        values, state = _eval_shapes(field, function, params, probe, jax.random.key(0))
        _check_values(field, values, real=True)
        if isinstance(function, Bound) and function.state is not None:
            _check_state(field, function.state, state)
    values, _ = _eval_shapes(field, function, params, probe, None)
    _check_values(field, values, real=training)
    # traced twice, what changes something outside gives two programs
    if calls_with_key and len({_jaxpr_text(function, params, probe) for _ in range(2)}) > 1:
        got = "a function that is another one when it is called again"
        hint = (
            "It changes something outside, such as a list or a module that it closes over: pass "
            "that as parameters or state."
        )
        raise InvalidInput.found(field, got, "pure functions", hint)


def check_rows(
    name: str, function: Callable[..., Any], start: Callable[[Any], Any], probe: dict[str, Any]
) -> None:
    """Refuses a function that fails in evaluation, or gives anything but an array of one row per
    example.
    """
    field = f"Task({name}=...)"
    params = jax.eval_shape(start, jax.random.key(0))
    shape = getattr(_eval_shapes(field, function, params, probe, None)[0], "shape", ())
    if shape[:1] != (_ROWS,):
        allowed = "one row per example, shape (batch, ...)"
        raise InvalidInput.found(field, f"shape {shape} for 3 examples", allowed)


def _eval_shapes(
    field: str, function: Any, params: Any, probe: dict[str, Any], key: Any
) -> tuple[Any, Any]:
    """Returns the shapes of the values and of the new state.

    Raises:
        InvalidInput: the function fails.
    """

    def evaluate(params: Any, examples: Any) -> Any:
        if isinstance(function, Bound):
            return function.update(params, examples, key)
        return function(params, examples, key), None

    with contextlib.ExitStack() as settings:
        # settings that are stricter than JAX's are kept where it runs
        if key is not None:
            settings.enter_context(jax.numpy_dtype_promotion("standard"))
            settings.enter_context(jax.numpy_rank_promotion("allow"))
        try:
            return jax.eval_shape(evaluate, params, probe)
        except Exception as error:
            shapes = {name: tuple(value.shape[1:]) for name, value in probe.items()}
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(".") + "."
            if isinstance(error, KeyError):
                text = f"There is no {shown(error.args[0])} among the arrays {sorted(probe)}."
            if key is None:
                text += " In evaluation the key is None: no dropout, no augmentation."
            got = f"a function that fails on examples of shapes {shapes}"
            raise InvalidInput.found(field, got, "a function that fits", text) from error


def _jaxpr_text(function: Any, params: Any, probe: Any) -> str:
    """Returns the text of a function's jaxpr in evaluation, without addresses."""
    # functions in a jaxpr's text have their addresses
    return re.sub(
        r"0x[0-9a-f]+", "", str(jax.make_jaxpr(lambda p, b: function(p, b, None))(params, probe))
    )


def _check_values(field: str, values: Any, real: bool) -> None:
    if getattr(values, "shape", None) != (_ROWS,):
        shape = getattr(values, "shape", None)
        got = type(values).__name__ if shape is None else f"shape {shape} for 3 examples"
        hint = (
            "Return one number per example, without a mean or a sum; only a loss that takes the "
            "argument `state` returns a new state beside them."
        )
        raise InvalidInput.found(field, got, "one value per example, shape (batch,)", hint)
    if real and not jnp.issubdtype(values.dtype, jnp.floating):
        hint = "A loss has to have a gradient."
        raise InvalidInput.found(field, f"values of type {values.dtype}", "real numbers", hint)


def _check_state(field: str, before: Any, after: Any) -> None:
    """Refuses a new state of another form than the one before."""
    old, new = (
        {
            jax.tree_util.keystr(path): (np.shape(leaf), str(jnp.result_type(leaf)))
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        }
        for tree in (before, after)
    )
    if old != new:
        allowed = f"a new state like the one before the step, {old}"
        raise InvalidInput.of(f"{field}, state", new, allowed)
