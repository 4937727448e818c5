"""Predictions of a trained model for new inputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from fedax.errors import DataError, InvalidInput, UnknownName
from fedax.examples.arrays import as_array
from fedax.examples.container import conformed, rows_of

PIECE = 2048
"""Examples that pass through the model at once."""


class Predictor(NamedTuple):
    """The part of a task that predictions need: everything but its data.

    Attributes:
        task: its name, for messages.
        function: `state -> predictions of (params, examples, key)`, None if the task has none.
        like: shapes and types of the task's arrays, by name.
        columns: names of the columns of x, or None.
        categories: by column, the texts that its cells are, in the order of their numbers.
    """

    task: str
    function: Callable[[PyTree], Callable[[PyTree, Any, Any], Any]] | None
    like: Mapping[str, Any]
    columns: Sequence[str] | None
    categories: Mapping[str, Sequence[str]]

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
            hint = "Give the task a function of predictions: predict=..."
            raise InvalidInput.because("predict", f"task {self.task!r} has no predictions", hint)
        examples = self._to_arrays(x)
        rows_of(examples, "predict(x)")
        examples = conformed(examples, {name: self.like[name] for name in examples}, "predict(x)")
        function = self.function(state)
        rows = len(next(iter(examples.values())))
        pieces = [
            {name: values[i : i + PIECE] for name, values in examples.items()}
            for i in range(0, rows, PIECE)
        ]
        return np.concatenate(
            # without rows, one empty piece gives the shape of the predictions
            [np.asarray(_predict_piece(function, params, piece)) for piece in pieces or [examples]]
        )

    def _to_arrays(self, x: Any) -> dict[str, Any]:
        """Converts the inputs to arrays by name."""
        # labels are inputs only where there is nothing else
        inputs = [name for name in self.like if name != "y"] or list(self.like)
        # tables are read by the names of their columns, whatever their order
        if self.columns is not None and hasattr(x, "columns"):
            return {"x": np.column_stack([self._read_column(x, name) for name in self.columns])}
        if any(base.__module__.startswith("torch.utils.data") for base in type(x).__mro__):
            hint = "Write predict(np.stack([item[0] for item in data_set]))."
            raise DataError.found("predict(x)", f"a {type(x).__name__} of PyTorch", "arrays", hint)
        if not isinstance(x, Mapping):
            if len(inputs) > 1:
                raise DataError.found("predict(x)", "one array", f"a dict of the arrays {inputs}")
            return {inputs[0]: as_array(np.asarray(x), "predict(x)")}
        for name in x:
            if name not in self.like:
                raise UnknownName.among("predict(x), array", str(name), self.like)
        if missing := [name for name in inputs if name not in x]:
            raise DataError.found(
                "predict(x)", f"no array {missing[0]!r}", f"the arrays {inputs}; y may be missing"
            )
        return {str(name): as_array(values, f"predict(x)[{name!r}]") for name, values in x.items()}

    def _read_column(self, frame: Any, name: str) -> np.ndarray:
        if name not in frame.columns:
            raise UnknownName.among("predict(x), column", name, map(str, frame.columns))
        cells = np.asarray(frame[name])
        # by "y" the categories have the labels' texts, also where a feature has this name
        if name == "y" or name not in self.categories:
            return as_array(cells, f"predict(x)[{name!r}]").astype(float)
        texts = list(self.categories[name])
        unknown = [str(cell) for cell in cells if str(cell).strip() not in texts]
        if unknown:
            raise DataError.of(f"predict(x)[{name!r}]", unknown[0], f"the texts {texts}")
        return np.array([texts.index(str(cell).strip()) for cell in cells], float)


@eqx.filter_jit
def _predict_piece(function: Callable[..., Any], params: PyTree, examples: Any) -> jax.Array:
    return function(params, examples, None)
