"""Predictions of a trained model for new inputs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, PyTree

from fedax.core.bound_model import PerExample
from fedax.errors import DataError
from fedax.examples.encoding import Encoding
from fedax.examples.integer_ranges import check_indices
from fedax.examples.ragged import Examples, as_rows, conformed, rows_of

PIECE = 2048
"""Examples that pass through the model at once."""


def predict(
    function: PerExample,
    params: PyTree,
    x: Any,
    like: Examples,
    encoding: Encoding | None,
    call: Callable[..., Array],
) -> np.ndarray:
    """Returns one row for each example.

    Args:
        function: predictions of `(params, examples, key)`.
        params: the trained parameters.
        x: the inputs, see `Task.predict`.
        like: arrays of the task by name, for their shapes and types.
        encoding: of tables, None if x was made of arrays.
        call: of the task's programs, see `ProgramOwner.call`.

    Raises:
        DataError: inputs that do not fit the training examples.
    """
    examples = _to_arrays(x, like, encoding)
    examples = conformed(examples, {name: like[name] for name in examples}, "predict(x)")
    # numbers too large for the type are infinite now
    rows = rows_of(examples, "predict(x)")
    # the task's own function within those of adapters and frozen leaves
    own: Any = function
    while hasattr(own, "function"):
        own = own.function
    size = getattr(getattr(own, "model", None), "vocabulary", None)
    if size is not None and np.max(examples["x"], initial=0) >= size:
        got = f"token {np.max(examples['x'])}"
        raise DataError.found("predict(x)['x']", got, f"tokens below {size}, of the model")
    # a function of its own, so that models of this library are looked at too
    check_indices("predict(x)", lambda *a: function(*a), lambda key: params, [examples], call)
    # without rows, one empty piece gives the shape of the predictions
    pieces = [
        {name: values[i : i + PIECE] for name, values in examples.items()}
        for i in range(0, max(rows, 1), PIECE)
    ]
    return np.concatenate(
        [np.asarray(call(_predict_piece, function, params, piece)) for piece in pieces]
    )


def _to_arrays(x: Any, like: Examples, encoding: Encoding | None) -> dict[str, np.ndarray]:
    """Converts the inputs to arrays by name."""
    # labels are inputs only where there is nothing else
    inputs = [name for name in like if name != "y"] or list(like)
    if not isinstance(x, Mapping):
        if len(inputs) > 1:
            raise DataError.found("predict(x)", "one array", f"a dict of the arrays {inputs}")
        x = {inputs[0]: x}
    if not set(inputs) <= set(x) <= set(like):
        raise DataError.found("predict(x)", f"the arrays {[*x]}", f"the arrays {[*like]}")
    arrays = dict[str, np.ndarray]()
    for name, values in x.items():
        # tables are read by the names of their columns, whatever their order
        if name == "x" and encoding is not None and hasattr(values, "columns"):
            arrays[name] = encoding.features(values)
        else:
            arrays[name] = as_rows(values, f"predict(x)[{name!r}]")
    return arrays


def _predict_piece(function: PerExample, params: PyTree, examples: Examples) -> Array:
    return function(params, examples, None)
