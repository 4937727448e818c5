"""Predictions of a trained model for new inputs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from fedax.errors import DataError, InvalidInput
from fedax.examples.encoding import Encoding
from fedax.examples.integer_ranges import check_inputs
from fedax.examples.ragged import as_rows, conformed, rows_of

PIECE = 2048
"""Examples that pass through the model at once."""


class Predictor(NamedTuple):
    """The part of a task that predictions need: everything but its data.

    Attributes:
        task: its name, for messages.
        function: `state -> predictions of (params, examples, key)`, None if the task has none.
        like: shapes and types of the task's arrays, by name.
        encoding: of tables, None if x was made of arrays.
        call: of the task's programs, see `ProgramOwner.call`.
        tokens: the smallest and the largest token that the model reads, None if it does not say.
    """

    task: str
    function: Callable[[PyTree], Callable[[PyTree, Any, Any], Any]] | None
    like: Mapping[str, Any]
    encoding: Encoding | None
    call: Callable[..., Any]
    tokens: tuple[int, int] | None = None

    def __call__(self, params: PyTree, x: Any, state: PyTree = None) -> np.ndarray:
        """Returns one row for each example.

        Args:
            params: the trained parameters.
            x: the inputs, see `Task.predict`.
            state: of the model; None for the task's.

        Raises:
            InvalidInput: a task without predictions.
            DataError: inputs that do not fit the training examples.
        """
        if self.function is None:
            hint = "Give the task a function of predictions: predictor=..."
            raise InvalidInput.because("predict", f"task {self.task!r} has no predictions", hint)
        examples = self._to_arrays(x)
        rows_of(examples, "predict(x)")
        examples = conformed(examples, {name: self.like[name] for name in examples}, "predict(x)")
        function = self.function(state)
        self._check_whole_numbers(function, params, examples)
        rows = len(next(iter(examples.values())))
        # without rows, one empty piece gives the shape of the predictions
        pieces = [
            {name: values[i : i + PIECE] for name, values in examples.items()}
            for i in range(0, max(rows, 1), PIECE)
        ]
        return np.concatenate(
            [np.asarray(self.call(_predict_piece, function, params, piece)) for piece in pieces]
        )

    def _to_arrays(self, x: Any) -> dict[str, Any]:
        """Converts the inputs to arrays by name."""
        # labels are inputs only where there is nothing else
        inputs = [name for name in self.like if name != "y"] or list(self.like)
        if not isinstance(x, Mapping):
            if len(inputs) > 1:
                raise DataError.found("predict(x)", "one array", f"a dict of the arrays {inputs}")
            x = {inputs[0]: x}
        if not set(inputs) <= set(x) <= set(self.like):
            raise DataError.found("predict(x)", f"the arrays {[*x]}", f"the arrays {[*self.like]}")
        arrays = {}
        for name, values in x.items():
            # tables are read by the names of their columns, whatever their order
            if name == "x" and self.encoding is not None and hasattr(values, "columns"):
                arrays[name] = self.encoding.features(values)
            else:
                arrays[name] = as_rows(values, f"predict(x)[{name!r}]")
        return arrays

    def _check_whole_numbers(
        self, function: Callable[..., Any], params: PyTree, examples: Mapping[str, Any]
    ) -> None:
        """Refuses tokens outside of the vocabulary, or other indices out of range.

        XLA would take the last entry of a table for them.
        """
        if self.tokens is None or "x" not in examples:
            check_inputs("predict(x)", function, params, examples, self.call)
            return
        x, (low, high) = examples["x"], self.tokens
        # padding counts for nothing, whatever it is
        if "mask" in examples and examples["mask"].shape == x.shape:
            x = x[examples["mask"].astype(bool)]
        if x.dtype.kind not in "iu" or not x.size or (low <= x.min() and x.max() <= high):
            return
        got = f"token {x.min() if x.min() < low else x.max()}"
        raise DataError.found("predict(x)['x']", got, f"{low} to {high}, the tokens of the model")


def _predict_piece(function: Callable[..., Any], params: PyTree, examples: Any) -> jax.Array:
    return function(params, examples, None)
