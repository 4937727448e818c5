"""Metrics of all predictions together, which are no means over examples: made on the host."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from fedax.core import InvalidInput, Task
from fedax.core.directions import Mode, check_mode, mode_field
from fedax.core.task import has_examples
from fedax.errors import shown
from fedax.examples.integer_ranges import LABELS_HINT, find_wrong_label
from fedax.observe.base import RAW, Observer, Split, View, count_field

_ROUNDING = 1e-2
"""How far probabilities may be outside [0, 1]: numbers of bfloat16 near 1 are 0.008
apart."""


class OnPredictions(Observer):
    """Base of metrics of all predictions on a split: `<split>_<name>`.

    The central test set counts as `test`.

    The predictions are those of the task (`Task.predictor`), and leave the compiled program; they
    take examples x classes numbers. Not on engines whose clients keep their predictions. NaN if any
    prediction is NaN.

    Args:
        split: `"central"`, the central test set (all clients' test examples by default),
            `"validation"`, `"test"` or `"train"`.
    """

    split: Split = eqx.field(static=True, default="central", kw_only=True)

    def __check_init__(self) -> None:
        if self.split not in (splits := get_args(Split)):
            field = f"{type(self).__name__}(split=...)"
            raise InvalidInput.of(field, self.split, f"one of {splits}")

    @property
    @abstractmethod
    def name(self) -> str:
        """Returns the name of the metric, without the split."""

    @abstractmethod
    def value(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        """Computes the metric of labels, shape (examples,), and predictions, (examples, ...)."""

    def __call__(self, view: View) -> dict[str, Any]:
        # the metric is no sum over examples: it is made on the host, from all predictions
        return {RAW + self.split: view.predictions(self.split)}

    def on_host(self, seen: Mapping[str, np.ndarray], task: Task) -> dict[str, Any]:
        predictions = np.asarray(seen[RAW + self.split])
        # NumPy and scikit-learn do not take types such as bfloat16 for numbers
        if jnp.issubdtype(predictions.dtype, jnp.floating) and predictions.dtype.kind != "f":
            predictions = predictions.astype(np.float32)
        if np.issubdtype(predictions.dtype, np.inexact) and np.isnan(predictions).any():
            return {self._metric_name: float("nan")}  # argmax would take NaN for a prediction
        return {
            self._metric_name: float(self.value(np.asarray(self._examples(task)["y"]), predictions))
        }

    @property
    def _metric_name(self) -> str:
        return f"{'test' if self.split == 'central' else self.split}_{self.name}"

    def _examples(self, task: Task) -> Any:
        if self.split == "central":
            return task.test_set
        data = getattr(task, self.split)
        return data.arrays if has_examples(data) else None

    def check(self, task: Task) -> None:
        name, data = f"observe {type(self).__name__}", self._examples(task)
        if data is None or "y" not in data:
            got = (
                f"task {task.name!r} without {self.split} examples"
                if data is None
                else "examples without labels y"
            )
            raise InvalidInput.of(name, got, "tasks with labelled ones")
        if task.predictor is None:
            raise InvalidInput.because(
                name, f"task {task.name!r} has no predictions", "Give `predict` to the task."
            )


class SetMetric(OnPredictions):
    """Any function of all labels and predictions.

    Args:
        called: its name.
        function: `(labels, predictions) -> number`, with NumPy arrays of shapes (examples,) and
            (examples, ...).
        split: see `OnPredictions`.
        mode: `"max"` where more is better, `"min"` where less is; needed where the metric selects a
            model or ends a run.

    Example:
        >>> import fedax
        >>> from sklearn.metrics import cohen_kappa_score
        >>> kappa = SetMetric("kappa", lambda y, p: cohen_kappa_score(y, p.argmax(1)), mode="max")
        >>> history = fedax.run(
        ...     fedax.FedAvg(), fedax.task("digits", clients=4), observe=[kappa], rounds=1
        ... )
        >>> -1 <= history.last("test_kappa") <= 1
        True
    """

    called: str = eqx.field(static=True)
    function: Callable[[np.ndarray, np.ndarray], float] = eqx.field(static=True)
    mode: Mode | None = mode_field()

    def __check_init__(self) -> None:
        check_mode("SetMetric(mode=...)", self.mode)
        if not isinstance(self.called, str) or not self.called.strip():
            raise InvalidInput.of("SetMetric(called=...)", self.called, "the metric's name, a text")
        if not callable(self.function):
            allowed = "a function (labels, predictions) -> number"
            hint = "Write lambda y, p: ..., of which p are the task's predictions."
            raise InvalidInput.of("SetMetric(function=...)", self.function, allowed, hint)

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        return {} if self.mode is None else {self._metric_name: self.mode}

    @property
    def name(self) -> str:
        return self.called

    def value(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        field = f"SetMetric({self.called!r}, function=...)"
        try:
            value = self.function(labels, predictions)
        except Exception as error:
            shapes = f"labels of shape {labels.shape} and predictions of shape {predictions.shape}"
            reason = f"fails on {shapes}, {type(error).__name__}: {str(error).rstrip('.')}"
            # classifiers predict a number for each class
            is_by_class = predictions.ndim > labels.ndim
            hint = "The predicted labels are predictions.argmax(-1)." if is_by_class else ""
            raise InvalidInput.because(field, reason, hint) from error
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            is_array = isinstance(value, np.ndarray | jax.Array)
            got = f"an array of shape {value.shape}" if is_array else shown(value)
            allowed = "a function that returns one number"
            raise InvalidInput.found(field, f"one that returns {got}", allowed) from error


class _OnProbabilities(OnPredictions):
    """Metrics of classifiers. NaN if any prediction is not finite."""

    called: ClassVar[str]
    best: ClassVar[Mode] = "max"
    takes_logits: ClassVar[bool] = False
    """Whether logits give the same number as probabilities."""

    @property
    def name(self) -> str:
        return self.called

    @abstractmethod
    def _measure(
        self,
        labels: Int[np.ndarray, "examples"],
        predictions: Float[np.ndarray, "examples classes"],
    ) -> float:
        """Computes the metric of finite predictions."""

    def value(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        if not np.isfinite(predictions).all():
            return float("nan")
        if not self.takes_logits:
            self._check_probabilities(predictions)
        return self._measure(labels, predictions)

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        return {self._metric_name: self.best}

    def check(self, task: Task) -> None:
        super().check(task)
        # (batch, classes) of the predictions
        shape, labels = predicted_shape(task), self._examples(task)["y"]
        if label_shape := np.shape(labels)[1:]:
            raise InvalidInput.found(
                self._field,
                f"labels y of shape {label_shape} for each example",
                "one label for each",
            )
        if len(shape) != 2 or shape[1] < 2:
            raise InvalidInput.found(
                self._field,
                f"predictions of shape {shape}",
                "probabilities of at least 2 classes, shape (batch, classes)",
                "For two classes, return both probabilities: jnp.stack([1 - p, p], axis=1).",
            )
        self._check_labels(np.asarray(labels), shape[1])

    @property
    def _field(self) -> str:
        return f"observe {type(self).__name__}"

    def _check_labels(self, labels: Shaped[np.ndarray, "examples"], classes: int) -> None:
        """Refuses labels that are not the number of a column of the predictions."""
        wrong_label = find_wrong_label(labels, classes)
        if wrong_label is None:
            return
        raise InvalidInput.found(
            self._field,
            f"the label {wrong_label} among the {self.split} examples",
            f"labels y from 0 to {classes - 1}, one for each column of the predictions",
            LABELS_HINT,
        )

    def _check_probabilities(self, predictions: Float[np.ndarray, "examples classes"]) -> None:
        """Refuses logits, for which these metrics give other numbers."""
        if not predictions.size:
            return
        low, high = float(predictions.min()), float(predictions.max())
        if low < -_ROUNDING or high > 1 + _ROUNDING:
            raise InvalidInput.found(
                self._field,
                f"predictions from {low:g} to {high:g}",
                "probabilities, from 0 to 1",
                "Of logits, let the task's `predict` return jax.nn.softmax(logits, axis=1).",
            )


class AUC(_OnProbabilities):
    """`<split>_auc`: the area under the ROC curve, in [0, 1].

    Of two classes, or the mean of each against the rest. Predictions must be probabilities, not
    logits.

    Classes that the examples lack, or that all have, are left out of the mean; NaN if none is left.
    Each area is that of scikit-learn's `roc_auc_score`.

    >>> AUC().value(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]))
    1.0
    """

    called = "auc"

    def _measure(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        from sklearn.metrics import roc_auc_score

        # with two classes both areas are the same
        classes = [1] if predictions.shape[1] == 2 else range(predictions.shape[1])
        # an area needs examples inside and outside of the class
        present_classes = [c for c in classes if 0 < np.count_nonzero(labels == c) < len(labels)]
        areas = [roc_auc_score(labels == c, predictions[:, c]) for c in present_classes]
        return float(np.mean(areas)) if areas else float("nan")


class F1(_OnProbabilities):
    """`<split>_f1`: the F1 score of the labels with the largest probabilities, in [0, 1].

    By scikit-learn's `f1_score`. Predictions may be logits as well.

    Args:
        average: over the classes, `"macro"`, `"micro"` or `"weighted"`; `"binary"` is that of class
            1 of two.
        split: see `OnPredictions`.
    """

    called, takes_logits = "f1", True
    average: Literal["macro", "micro", "weighted", "binary"] = eqx.field(
        static=True, default="macro"
    )

    def __check_init__(self) -> None:
        if self.average not in (choices := ("macro", "micro", "weighted", "binary")):
            raise InvalidInput.of("F1(average=...)", self.average, f"one of {choices}")

    def check(self, task: Task) -> None:
        super().check(task)
        classes = predicted_shape(task)[1]
        if self.average == "binary" and classes != 2:
            raise InvalidInput.of(
                "F1(average=...)",
                self.average,
                f"macro, micro or weighted for task {task.name!r}, which has {classes} classes",
            )

    def _measure(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        from sklearn.metrics import f1_score

        absent: Any = 0.0  # of a class that is neither there nor predicted
        return float(
            f1_score(labels, predictions.argmax(1), average=self.average, zero_division=absent)
        )


class CalibrationError(_OnProbabilities):
    r"""`<split>_calibration_error`: the expected calibration error.

    $\sum_b \frac{\lvert B_b \rvert}{n} \lvert \mathrm{acc}(B_b) - \mathrm{conf}(B_b) \rvert$.

    Examples are put into bins of equal width by the largest probability, their confidence; of each
    bin, accuracy and mean confidence are compared. Predictions must be probabilities, not logits.

    Args:
        bins: over (0, 1], at least 1.
        split: see `OnPredictions`.

    Source: Guo, Pleiss, Sun and Weinberger, On Calibration of Modern Neural Networks
    (arXiv:1706.04599), eq. (3).
    """

    bins: int = count_field(15)

    called, best = "calibration_error", "min"

    def _measure(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        confidence, is_right = predictions.max(1), predictions.argmax(1) == labels
        # bins are open below, so 0 would lie before the first one
        bin_index = np.clip(np.ceil(confidence * self.bins).astype(int) - 1, 0, self.bins - 1)
        gaps = np.zeros(self.bins)
        # a bin's gap times its size: accuracies and confidences summed over its examples
        np.add.at(gaps, bin_index, is_right - confidence)
        return float(np.abs(gaps).sum() / len(labels))


def predicted_shape(task: Task) -> tuple[int, ...]:
    """Returns the shape of a task's predictions for three examples."""
    assert task.predictor is not None, "a task without predictions"
    probe = {
        k: jax.ShapeDtypeStruct((3, *v.shape[1:]), v.dtype) for k, v in task.train.arrays.items()
    }
    predict = task.predictions
    assert predict is not None
    params = jax.eval_shape(task.start, jax.random.key(0))
    return tuple(
        jax.eval_shape(
            lambda params, examples: predict(params, examples, None), params, probe
        ).shape
    )
