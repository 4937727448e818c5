"""Classification with a model that gives logits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from fedax.core import DataError, InvalidInput, Task
from fedax.core.programs import ProgramOwner
from fedax.data import FederatedData
from fedax.examples.integer_ranges import check_labels
from fedax.models import MLP, Model, ResNet, Softmax, cifar_cnn, lenet, mnist_cnn
from fedax.numerics.spectrum import mean_outer_norm
from fedax.tasks.clients import parts_of_task
from fedax.tasks.own_models.by_name import (
    check_logits,
    check_model,
    classify_with,
    is_network,
    make_model,
)
from fedax.utils.numbers import python_number, with_python_numbers

Augment: TypeAlias = Callable[[Any, Any], Any]
"""From a batch of inputs and a key to the inputs of the model; the key is None in evaluation. Equal
ones compare equal.
"""

Architecture = Callable[[int, int], Model]

MODELS: dict[str, Architecture] = {
    "softmax": Softmax,
    "mlp": lambda features, classes: MLP((features, 200, 200, classes)),
    "mlp_dropout": lambda features, classes: MLP((features, 128, classes), dropout=0.5),
    "mnist_cnn": lambda features, classes: mnist_cnn(classes),
    "lenet": lambda features, classes: lenet(classes),
    "cifar_cnn": lambda features, classes: cifar_cnn(classes),
    "resnet20": lambda features, classes: ResNet(classes=classes),
}
"""From features and classes, by the name that tasks and experiment files use."""

# Records rather than closures, so that tasks with equal models share compiled programs.


@dataclass(frozen=True)
class Start:
    """The model's own initial parameters."""

    model: Model

    def __call__(self, key: Key[Array, ""]) -> PyTree:
        return self.model.init(key)


@dataclass(frozen=True)
class OfLogits:
    """A function of a model's logits."""

    model: Model
    augment: Augment | None = None

    def check_labels(
        self,
        field: str,
        start: Callable[[Key[Array, ""]], PyTree],
        splits: Sequence[Mapping[str, Any]],
    ) -> None:
        """Refuses examples with labels that are none of the model's classes; called by `Task`.

        Args:
            field: names the function in the message.
            start: makes the model's parameters.
            splits: training, test and other examples.

        Raises:
            DataError: such a label.
        """
        x = splits[0]["x"]

        def logits_of(key: Key[Array, ""], x: Any) -> Any:
            inputs = x if self.augment is None else self.augment(x, None)
            return self.model(start(key), inputs, None)

        # one example, by shape alone
        probe = jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            logits = jax.eval_shape(logits_of, jax.random.key(0), probe)
        check_labels(field, splits, logits.shape[-1])

    @property
    def separate(self) -> bool:
        """Whether model and augmentation are this library's, which couple no examples and need no
        probe.
        """
        return all(
            component is None or type(component).__module__.startswith("fedax.")
            for component in (self.model, self.augment)
        )


@dataclass(frozen=True)
class CrossEntropy(OfLogits):
    r"""Cross-entropy of each example: $\log \sum_c e^{z_c} - z_y$ with logits z and label y.

    Finite for any finite logits.

    Args:
        model: its logits have shape (batch, classes).
        augment: what changes the inputs of a training step, or None.
    """

    def __call__(self, params: PyTree, examples: Any, key: Any) -> Float[Array, "batch"]:
        logits = _logits(self.model, self.augment, params, examples["x"], key)
        return jax.nn.logsumexp(logits, axis=1) - _pick_label(logits, examples["y"])

    def smoothness(self, examples: Any) -> float | None:
        r"""Returns $\lambda_{\max}(X^\top X) / 2n$ of a linear model without augmentation.

        X has a column of ones for the bias.

        The Hessian in the logits, $\operatorname{diag}(p) - p p^\top$, has no eigenvalue above 1/2,
        for two classes too. None for other models.
        """
        if self.augment is not None or not _is_linear(self.model):
            return None
        x = np.asarray(examples["x"], float)
        return mean_outer_norm(np.concatenate([x, np.ones((len(x), 1))], axis=1)) / 2


@dataclass(frozen=True)
class Accuracy(OfLogits):
    """Accuracy of each example: 1 if its label has the largest logit, else 0.

    Of equal logits the first counts.

    Args:
        model: its logits have shape (batch, classes).
        augment: what changes the inputs of a training step, or None; without effect here.
    """

    def __call__(self, params: PyTree, examples: Any, key: Any) -> Float[Array, "batch"]:
        logits = _logits(self.model, self.augment, params, examples["x"], key)
        return (jnp.argmax(logits, axis=1).astype(examples["y"].dtype) == examples["y"]).astype(
            logits.dtype
        )


@dataclass(frozen=True)
class Probabilities(OfLogits):
    """The probabilities of all classes for each example: its predictions."""

    def __call__(self, params: PyTree, examples: Any, key: Any) -> Float[Array, "batch classes"]:
        return jax.nn.softmax(_logits(self.model, self.augment, params, examples["x"], key))


def _is_linear(model: Model) -> bool:
    """Returns whether the logits are an affine function of features and parameters."""
    return isinstance(model, Softmax) or (isinstance(model, MLP) and len(model.widths) == 2)


def _logits(
    model: Model, augment: Augment | None, params: PyTree, x: Any, key: Any
) -> Float[Array, "batch classes"]:
    if augment is None:
        return model(params, x, key)
    augment_key, model_key = (None, None) if key is None else jax.random.split(key)
    return model(params, augment(x, augment_key), model_key)


def _pick_label(
    logits: Float[Array, "batch classes"], labels: Int[Array, "batch"]
) -> Float[Array, "batch"]:
    # A masked sum: its gradient is elementwise, where indexing would scatter.
    classes = jnp.arange(logits.shape[1], dtype=labels.dtype)
    return jnp.sum(jnp.where(labels[:, None] == classes[None, :], logits, 0.0), axis=1)


def _check_vocabulary(arguments: dict[str, Any], model: Model) -> None:
    """Refuses tokens that are none of a model's vocabulary."""
    size = getattr(model, "vocabulary", None)
    if size is None:
        return
    for split in ("train", "test", "validation", "central"):
        examples = arguments.get(split)
        # the central is a dict of arrays, the other parts hold theirs
        x = (
            None
            if examples is None
            else np.asarray((examples if split == "central" else examples.arrays)["x"])
        )
        if x is None or not x.size:
            continue
        if x.dtype.kind not in "iu":
            raise DataError.found(
                f"{split}['x']",
                f"numbers of type {x.dtype}",
                f"tokens, whole numbers from 0 to {size - 1}",
            )
        low, high = int(x.min()), int(x.max())
        if low < 0 or high >= size:
            got = f"token {low if low < 0 else high}"
            raise DataError.found(
                f"{split}['x']", got, f"0 to {size - 1}, the vocabulary of {type(model).__name__}"
            )


@with_python_numbers
def _is_of_package(value: Any) -> bool:
    return value is None or type(value).__module__.startswith("fedax.models.")


def classification(
    data: FederatedData,
    model: Model | Any,
    *,
    augment: Augment | None = None,
    l2: float | int = 0.0,
    name: str | None = None,
) -> Task:
    """Makes a classification task: cross-entropy as the loss, "accuracy" as a score.

    Args:
        data: the clients' examples.
        model: from `fedax.models`, anything like it, or a module of Flax, Equinox or PyTorch; its
            logits have one column for each class. Or a class or function that makes one from some
            of the arguments features, classes, and rngs (of Flax NNX) or key (of Equinox). Or a
            name, as experiment files have it: softmax, mlp, mlp_dropout, mnist_cnn, lenet,
            cifar_cnn or resnet20.
        augment: changes inputs on their way into the model, such as `fedax.models.Augmentation`; at
            random in training steps, and without randomness in evaluation.
        l2: as in `fedax.Task`, at least 0.
        name: that of the data by default.

    Raises:
        InvalidInput: a model that does not fit the data's features or classes.

    >>> from fedax.data import FederatedData
    >>> from fedax.models import Softmax
    >>> data = FederatedData(
    ...     [{"x": [[0.0], [1.0]], "y": [0, 1]}, {"x": [[2.0]], "y": [1]}], classes=2
    ... )
    >>> classification(data, Softmax(1, 2)).train.clients
    2
    """
    # numbers of an example, which makers of models are told
    features = int(np.prod(np.shape(data.train[0]["x"])[1:]))
    model = make_model("classification", model, MODELS, features, data.classes)
    if is_network(model):
        if augment is not None:
            raise InvalidInput.of(
                "classification(augment=...)",
                augment,
                "None for a module, which augments its own inputs",
            )
        return classify_with(model, data, l2, data.name if name is None else name)
    allowed = "a model with init(key) and a call, a module, or a class or function that makes one"
    check_model("classification(model=...)", model, allowed)
    arguments = parts_of_task(data)
    _check_vocabulary(arguments, model)
    task = Task(
        start=Start(model),
        loss=CrossEntropy(model, augment),
        **arguments,
        scores={"accuracy": Accuracy(model, augment)},
        l2=python_number(l2),
        name=data.name if name is None else name,
        predictor=Probabilities(model, augment),
        owner=None if _is_of_package(model) and _is_of_package(augment) else ProgramOwner(),
    )
    # one example, by shape alone
    probe = jax.ShapeDtypeStruct(
        (1, *task.train.arrays["x"].shape[1:]), task.train.arrays["x"].dtype
    )
    logits = jax.eval_shape(
        lambda key, x: _logits(model, augment, model.init(key), x, None), jax.random.key(0), probe
    )
    check_logits(logits.shape[1], data.classes)
    return task
