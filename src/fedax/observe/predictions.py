"""Metrics of all predictions together, which are no means over examples: made on the host."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedax.core import InvalidInput, Task
from fedax.core.directions import Mode
from fedax.core.hyper import hyper
from fedax.examples.integer_ranges import LABELS_HINT, find_wrong_label
from fedax.observe.base import RAW, Observer, Split, View
from fedax.observe.scores import check_split

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

    _: dataclasses.KW_ONLY
    split: Split = hyper("central", choices=("train", "validation", "test", "central"))

    @property
    @abstractmethod
    def name(self) -> str:
        """Returns the name of the metric, without the split."""

    @abstractmethod
    def value(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        """Computes the metric of labels, shape (examples,), and predictions, (examples, ...)."""

    @property
    def _metric_name(self) -> str:
        return f"{'test' if self.split == 'central' else self.split}_{self.name}"

    def __call__(self, view: View) -> dict[str, Array]:
        return {RAW + self.split: view.predictions(self.split)}

    def on_host(self, seen: Mapping[str, np.ndarray], task: Task) -> dict[str, Any]:
        predictions = np.asarray(seen[RAW + self.split])
        if jnp.issubdtype(predictions.dtype, jnp.floating):
            # NumPy and scikit-learn do not take types such as bfloat16 for numbers
            if predictions.dtype.kind != "f":
                predictions = predictions.astype(np.float32)
            if np.isnan(predictions).any():
                return {self._metric_name: math.nan}  # argmax would take NaN for a prediction
        labels = np.asarray(check_split(self._metric_name, task, self.split)["y"])
        return {self._metric_name: self.value(labels, predictions)}

    def check(self, task: Task) -> None:
        field = f"observe {type(self).__name__}"
        if "y" not in check_split(field, task, self.split):
            raise InvalidInput.found(field, "examples without labels y", "tasks with labelled ones")
        if task.predictor is None:
            reason = f"task {task.name!r} has no predictions"
            raise InvalidInput.because(field, reason, "Give `predict` to the task.")


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
    _: dataclasses.KW_ONLY
    mode: Mode | None = hyper(None, choices=(None, "min", "max"))

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        return {} if self.mode is None else {self._metric_name: self.mode}

    @property
    def name(self) -> str:
        return self.called

    def value(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        return float(self.function(labels, predictions))


class _OnProbabilities(OnPredictions):
    """Metrics of classifiers. NaN if any prediction is not finite."""

    best: ClassVar[Mode] = "max"
    takes_logits: ClassVar[bool] = False
    """Whether logits give the same number as probabilities."""

    def modes(self, scores: Mapping[str, Mode]) -> Mapping[str, Mode]:
        return {self._metric_name: self.best}

    @abstractmethod
    def _measure(
        self,
        labels: Int[np.ndarray, "examples"],
        predictions: Float[np.ndarray, "examples classes"],
    ) -> float:
        """Computes the metric of finite predictions."""

    def value(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        if not np.isfinite(predictions).all():
            return math.nan
        field = f"observe {type(self).__name__}"
        # one column would give the same label to all examples
        if predictions.ndim != 2 or predictions.shape[1] < 2:
            got = f"predictions of shape {predictions.shape}"
            allowed = "probabilities of at least 2 classes, shape (examples, classes)"
            hint = "For two classes, return both probabilities: jnp.stack([1 - p, p], axis=1)."
            raise InvalidInput.found(field, got, allowed, hint)
        wrong_label = find_wrong_label(labels, predictions.shape[1])
        if wrong_label is not None:
            got = f"the label {wrong_label} among the {self.split} examples"
            allowed = f"labels y from 0 to {predictions.shape[1] - 1}, one for each column"
            raise InvalidInput.found(field, got, allowed, LABELS_HINT)
        # of logits, AUC and the calibration error are other numbers
        low = predictions.min(initial=0)
        high = predictions.max(initial=1)
        if not self.takes_logits and (low < -_ROUNDING or high > 1 + _ROUNDING):
            got = f"predictions from {low:g} to {high:g}"
            hint = "Of logits, let the task's `predict` return jax.nn.softmax(logits, axis=1)."
            raise InvalidInput.found(field, got, "probabilities, from 0 to 1", hint)
        return self._measure(labels, predictions)


class AUC(_OnProbabilities):
    """`<split>_auc`: the area under the ROC curve, in [0, 1].

    Of two classes, or the mean of each against the rest. Predictions must be probabilities, not
    logits.

    Classes that the examples lack, or that all have, are left out of the mean; NaN if none is left.
    Each area is that of scikit-learn's `roc_auc_score`.

    >>> AUC().value(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]))
    1.0
    """

    name = "auc"  # type: ignore[assignment]

    def _measure(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        from sklearn.metrics import roc_auc_score

        # with two classes both areas are the same
        classes = [1] if predictions.shape[1] == 2 else range(predictions.shape[1])
        # an area needs examples inside and outside of the class
        present_classes = [c for c in classes if 0 < np.count_nonzero(labels == c) < len(labels)]
        areas = [roc_auc_score(labels == c, predictions[:, c]) for c in present_classes]
        return float(np.mean(areas)) if areas else math.nan


class F1(_OnProbabilities):
    """`<split>_f1`: the F1 score of the labels with the largest probabilities, in [0, 1].

    By scikit-learn's `f1_score`. Predictions may be logits as well.

    Args:
        average: over the classes, `"macro"`, `"micro"` or `"weighted"`; `"binary"` is that of class
            1 of two.
        split: see `OnPredictions`.
    """

    average: Literal["macro", "micro", "weighted", "binary"] = hyper(
        "macro", choices=("macro", "micro", "weighted", "binary")
    )

    name, takes_logits = "f1", True  # type: ignore[assignment]

    def _measure(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        from sklearn.metrics import f1_score

        if self.average == "binary" and predictions.shape[1] > 2:
            allowed = f"another one for predictions of {predictions.shape[1]} classes"
            raise InvalidInput.of("F1(average=...)", self.average, allowed)
        absent: Any = 0.0  # of a class that is neither there nor predicted
        return f1_score(labels, predictions.argmax(1), average=self.average, zero_division=absent)


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

    bins: int = hyper(15, low=1)

    name, best = "calibration_error", "min"  # type: ignore[assignment]

    def _measure(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        confidence = predictions.max(1)
        is_right = predictions.argmax(1) == labels
        # bins are open below, so 0 would lie before the first one
        bin_index = np.clip(np.ceil(confidence * self.bins).astype(int) - 1, 0, self.bins - 1)
        gaps = np.zeros(self.bins)
        # a bin's gap times its size: accuracies and confidences summed over its examples
        np.add.at(gaps, bin_index, is_right - confidence)
        return np.abs(gaps).sum() / len(labels)
