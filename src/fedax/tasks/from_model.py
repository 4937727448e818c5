"""Tasks of models: a loss of outputs and examples, or classification."""

import contextlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.core import DataError, InvalidInput, Task
from fedax.core.bound_model import Policy
from fedax.core.directions import Mode
from fedax.core.programs import ProgramOwner
from fedax.core.starting_point import starting_point
from fedax.data import FederatedData
from fedax.examples.integer_ranges import check_labels, find_wrong_label
from fedax.models import (
    MLP,
    Augmented,
    Bigram,
    CharLSTM,
    Model,
    ResNet,
    Softmax,
    cifar_cnn,
    lenet,
    mnist_cnn,
)
from fedax.models.augment import Augment
from fedax.numerics.spectrum import mean_outer_norm
from fedax.utils.leaf_names import Which
from fedax.utils.plugins import find

Inputs = str | tuple[str, ...] | Callable[[Any], Any]
"""What a model gets of the examples: an array by its name, a tuple of several, or a function of the
examples.
"""
Architecture = Callable[[int, int], Any]

MODELS: dict[str, Architecture] = {
    "softmax": lambda features, classes: Softmax(features, classes),
    "mlp": lambda features, classes: MLP((features, 200, 200, classes)),
    "mlp_dropout": lambda features, classes: MLP((features, 128, classes), dropout=0.5),
    "mnist_cnn": lambda features, classes: mnist_cnn(classes),
    "lenet": lambda features, classes: lenet(classes),
    "cifar_cnn": lambda features, classes: cifar_cnn(classes),
    "resnet20": lambda features, classes: ResNet(classes=classes),
    "bigram": lambda features, classes: Bigram(classes),
    "lstm": lambda features, classes: CharLSTM(classes),
    "lstm_two_biases": lambda features, classes: CharLSTM(classes, biases=2, start="uniform"),
    "lstm_peepholes": lambda features, classes: CharLSTM(classes, peepholes=True),
}
"""From features and classes, of text the length of a window and the size of the vocabulary, by the
name that tasks and experiment files use.
"""


# Records rather than closures, so that tasks with equal models share compiled programs.


MOST_UNEQUAL = 30
"""By how much the ranges of features may differ before there is a warning."""
MOST_LOOKED_AT = 10_000
"""Examples by which ranges are judged."""


@dataclass(frozen=True)
class Start:
    """The model's own initial parameters."""

    model: Any

    def __call__(self, key: Any) -> PyTree:
        return self.model.init(key)[0]


@dataclass(frozen=True)
class Halfspaces:
    r"""The model of binary logistic regression without intercept: one output
    $\langle x, w \rangle$, from w = 0.
    """

    features: int

    def init(self, key: Any) -> tuple[Any, None]:
        return jnp.zeros(self.features), None

    def apply(self, params: Any, state: None, x: Any, key: Any) -> tuple[Any, None]:
        return x.astype(params.dtype) @ params, None


@dataclass(frozen=True)
class OfOutputs:
    """A per-example function of a model's outputs.

    Attributes:
        model: see `fedax.models.Model`.
        measure: of the outputs and the examples.
        inputs: see `Inputs`.
    """

    takes_state: ClassVar[bool] = True

    model: Any
    measure: Callable[[Any, Any], Any]
    inputs: Inputs = "x"

    def __call__(self, params: PyTree, examples: Any, key: Any, state: PyTree = None) -> Any:
        outputs, new_state = self.outputs(params, examples, key, state)
        values = self.measure(outputs, examples)
        return values if state is None else (values, new_state)

    def outputs(
        self, params: PyTree, examples: Any, key: Any, state: PyTree = None
    ) -> tuple[Any, PyTree]:
        """Returns the model's outputs and its state after them."""
        inputs = self.inputs
        if isinstance(inputs, tuple):
            x = tuple(examples[name] for name in inputs)
        else:
            x = inputs(examples) if callable(inputs) else examples[inputs]
        types = {leaf.dtype for leaf in jax.tree.leaves(params) if _is_real(leaf)}
        if len(types) == 1:
            # layers of other libraries expect the precision of their parameters
            x = jax.tree.map(lambda a: a.astype(*types) if _is_real(a) else a, x)
        return self.model.apply(params, state, x, key)

    def shape(self, arrays: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the shape of the outputs for three examples, () if they are no array."""
        probe = {k: jax.ShapeDtypeStruct((3, *v.shape[1:]), v.dtype) for k, v in arrays.items()}

        def evaluate(key: Any, examples: Any) -> Any:
            params, state = self.model.init(key)
            return self.outputs(params, examples, None, state)[0]

        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return getattr(eqx.filter_eval_shape(evaluate, jax.random.key(0), probe), "shape", ())

    def check_labels(self, field: str, splits: Sequence[Mapping[str, Any]]) -> None:
        """Refuses labels that are none of the model's classes; called by `Task`.

        Raises:
            DataError: such a label.
        """
        if self.measure in (cross_entropy, accuracy):
            check_labels(field, splits, self.shape(splits[0])[1])

    @property
    def separate(self) -> bool:
        """Whether model and function are this library's, which couple no examples and need no
        probe.
        """
        is_own = getattr(self.measure, "__module__", "").startswith("fedax.tasks.")
        return is_own and _is_own(self.model)

    def smoothness(self, examples: Any) -> float | None:
        r"""Returns $\lambda_{\max}(X^\top X) / 2n$ for the cross-entropy of a linear model.

        X has a column of ones for the bias. The Hessian in the logits,
        $\operatorname{diag}(p) - p p^\top$, has no eigenvalue above 1/2, for two classes too. Of
        binary logistic regression it is $\lambda_{\max}(X^\top X) / 4n$, because the logistic
        function's slope is at most 1/4, which it reaches at 0. None for other functions and models.
        """
        model = self.model
        if isinstance(model, Halfspaces):
            return mean_outer_norm(examples["x"]) / 4
        is_linear = isinstance(model, Softmax) or (
            isinstance(model, MLP) and len(model.widths) == 2
        )
        if self.measure is not cross_entropy or not is_linear:
            return None
        x = np.asarray(examples["x"], float)
        return mean_outer_norm(np.concatenate([x, np.ones((len(x), 1))], axis=1)) / 2


def _is_real(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _is_own(model: Any) -> bool:
    """Returns whether a model is a class of this library, equal ones of which share programs."""
    if isinstance(model, Augmented):
        return _is_own(model.model) and _is_own(model.augment)
    return type(model).__module__.startswith("fedax.") and not isinstance(model, Model)


def cross_entropy(logits: Any, examples: Any) -> Any:
    r"""Returns the cross-entropy of each example, $\log \sum_c e^{z_c} - z_y$.

    z are the logits, y is the label. Finite for any finite logits.

    Raises:
        InvalidInput: outputs of another shape than (batch, classes).
    """
    if jnp.ndim(logits) != 2:
        got = f"outputs of shape {jnp.shape(logits)}"
        raise InvalidInput.found("model", got, "outputs of shape (batch, classes)")
    # a masked sum: its gradient is elementwise, where indexing would scatter
    is_label = _match_labels(jnp.arange(logits.shape[1])[None, :], examples["y"][:, None])
    return jax.nn.logsumexp(logits, axis=1) - jnp.sum(jnp.where(is_label, logits, 0.0), axis=1)


def accuracy(outputs: Any, examples: Any) -> Any:
    """Returns 1 for each example whose label has the largest output, the first of equal ones; else
    0.
    """
    return _match_labels(jnp.argmax(outputs, axis=1), examples["y"]).astype(outputs.dtype)


def _match_labels(classes: Any, labels: Any) -> Any:
    """Returns whether classes are labels, whose type may be too narrow for all classes."""
    if jnp.issubdtype(labels.dtype, jnp.integer):
        return classes == labels.astype(classes.dtype)
    return classes.astype(labels.dtype) == labels


def probabilities(outputs: Any, examples: Any) -> Any:
    """Returns the probabilities of all classes, of outputs that are logits."""
    return jax.nn.softmax(outputs, axis=1)


def _as_they_are(outputs: Any, examples: Any) -> Any:
    return outputs


def from_model(
    model: Model | Any,
    loss: Callable[[Any, Any], Any],
    data: FederatedData | Any,
    *,
    inputs: Inputs = "x",
    scores: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    l2: float | int = 0.0,
    frozen: Which | None = None,
    state_policy: Policy = "average",
    predict: Callable[[Any, Any], Any] | None = None,
    modes: Mapping[str, Mode] | None = None,
    name: str | None = None,
) -> Task:
    r"""Makes a task of a model and a loss of its outputs.

    A model with a state, such as batch statistics, trains on full minibatches: a short one is
    filled again with examples of the same client.

    Args:
        model: of `fedax.models`, or a module adapted by `fedax.models.linen`, `nnx`, `equinox`,
            `haiku` or `torch`, or any `fedax.models.Model`.
        loss: `loss(outputs, examples) -> (batch,)`, one number per example. `examples` is a dict of
            arrays with a batch axis; where clients hold one array each, it is `x`.
        data: the clients' examples, or what `FederatedData.from_arrays` takes.
        inputs: what the model gets: the name of an array, a tuple of names, whose arrays it gets as
            a tuple, or a function of the examples.
        scores: further per-example functions of outputs and examples, by name. A classifier has
            accuracy by itself.
        l2: adds $\frac{\text{l2}}{2}\lVert w \rVert^2$ to every client's loss, at least 0.
        frozen: leaves that are not trained, by name or predicate.
        state_policy: see `fedax.Task`.
        predict: `predict(outputs, examples)`, one row per example. By default the probabilities of
            the classes of a classifier, else the outputs.
        modes: of scores, see `fedax.Task`.
        name: that of the data by default.

    A model is a classifier if its outputs have several columns and all labels `y` are numbers of
    them.

    Example:
        >>> import equinox as eqx, numpy as np, fedax
        >>> model = fedax.models.equinox(lambda key: eqx.nn.MLP(2, "scalar", 8, 1, key=key))
        >>> clients = [{"x": np.ones((4, 2)), "y": np.ones(4)}] * 3
        >>> task = fedax.from_model(model, lambda z, examples: (z - examples["y"]) ** 2, clients)
        >>> history = fedax.run(fedax.FedAvg(), task, solver=fedax.SGD(0.1), rounds=3)
        >>> history.params(np.ones(2)).shape
        ()

    Raises:
        InvalidInput: a model, a loss or data that do not fit each other.
    """
    if not (callable(getattr(model, "init", None)) and callable(getattr(model, "apply", None))):
        hint = "Adapt modules by fedax.models.linen, nnx, equinox, haiku or torch."
        allowed = "a model with init(key) and apply(params, state, x, key)"
        raise InvalidInput.of("model", model, allowed, hint)
    if not isinstance(data, FederatedData):
        data = FederatedData.from_arrays(data, name="task")

    def of_outputs(function: Callable[[Any, Any], Any]) -> OfOutputs:
        return OfOutputs(model, function, inputs)

    functions = {score: of_outputs(function) for score, function in (scores or {}).items()}
    try:
        shape = of_outputs(loss).shape(data.train.arrays)
    except Exception:  # the probe of the loss says why
        shape = ()
    is_classifier = loss is cross_entropy or _labels_are_columns(data, shape)
    if is_classifier:
        functions.setdefault("accuracy", of_outputs(accuracy))
    if predict is None and (is_classifier or shape[:1] == (3,)):
        predict = probabilities if is_classifier else _as_they_are
    start, untrained = starting_point(Start(model), frozen, getattr(model, "frozen", None))
    is_shared = _is_own(model) and all(
        function.__module__.startswith("fedax.") for function in (loss, *(scores or {}).values())
    )
    return Task(
        start=start,
        loss=of_outputs(loss),
        data=data,
        scores=functions,
        l2=l2,
        name=name,
        frozen=untrained,
        state=model.init(jax.random.key(0))[1],
        state_policy=state_policy,
        modes=dict(modes or {}),
        predictor=None if predict is None else of_outputs(predict),
        owner=None if is_shared else ProgramOwner(),
    )


def _labels_are_columns(data: FederatedData, shape: tuple[int, ...]) -> bool:
    """Returns whether all labels y are numbers of columns of outputs of a shape."""
    labels = [arrays.get("y") for arrays in data.arrays_by_part.values()]
    return (
        len(shape) == 2
        and shape[1] > 1
        and all(y is not None and y.ndim == 1 and y.dtype.kind in "iu" for y in labels)
        and all(find_wrong_label(y, shape[1]) is None for y in labels)
    )


def classification(
    data: FederatedData,
    model: str | Model | Any,
    *,
    augment: Augment | None = None,
    l2: float | int = 0.0,
    name: str | None = None,
) -> Task:
    """Makes a classification task: cross-entropy as the loss, "accuracy" as a score.

    Args:
        data: the clients' examples.
        model: as in `from_model`, with one column of logits for each class; or a class or function
            that makes one from some of the arguments features and classes; or a name, as experiment
            files have it: softmax, mlp, mlp_dropout, mnist_cnn, lenet, cifar_cnn or resnet20; of
            text bigram, lstm, lstm_two_biases or lstm_peepholes.
        augment: changes inputs on their way into the model, such as `fedax.models.Augmentation`; at
            random in training steps, and without randomness in evaluation.
        l2: as in `fedax.Task`, at least 0.
        name: that of the data by default.

    Raises:
        InvalidInput: a model that does not fit the data's features or classes.

    >>> from fedax.data import FederatedData
    >>> from fedax.models import Softmax
    >>> data = FederatedData.from_arrays(
    ...     [{"x": [[0.0], [1.0]], "y": [0, 1]}, {"x": [[2.0]], "y": [1]}], classes=2
    ... )
    >>> classification(data, Softmax(1, 2)).train.clients
    2
    """
    if data.classes is None:
        hint = "fedax.from_model takes data without classes."
        raise DataError.found("classification(data=...)", "no classes", "labels of classes", hint)
    _warn_of_ranges(data.train.arrays["x"])
    # numbers of an example, which makers of models are told
    features = int(np.prod(np.shape(data.train[0]["x"])[1:]))
    model = _make_model(model, features, data.classes)
    if augment is not None:
        model = Augmented(model, augment)
    task = from_model(model, cross_entropy, data, l2=l2, name=name)
    _check_vocabulary(task, model)
    columns = task.loss.shape(task.train.arrays)[1]
    if columns != data.classes:
        # the loss of a label without a logit would have no lower bound
        allowed = f"{data.classes}, one for each class"
        raise InvalidInput.of("classification(model=...)", f"{columns} logits", allowed)
    return task


def _warn_of_ranges(x: Any) -> None:
    """Warns of features whose ranges differ so much that models may not learn from the small ones.

    Arrays with more columns are images or words, whose columns have one unit.
    """
    if np.ndim(x) != 2 or not 1 < x.shape[1] <= 100:
        return
    ranges = np.ptp(np.asarray(x[:MOST_LOOKED_AT], float), axis=0)
    widest = ranges.max()
    narrowest = ranges[ranges > 0].min(initial=np.inf)
    if widest > MOST_UNEQUAL * narrowest:
        text = (
            f"the columns of x have ranges from {narrowest:.3g} to {widest:.3g}, and a model may "
            "predict the same class for all examples. Subtract the mean of each column and divide "
            "by its standard deviation, as fedax.from_table does."
        )
        warnings.warn(text, stacklevel=3)


def _check_vocabulary(task: Task, model: Any) -> None:
    """Refuses tokens that are none of a model's vocabulary."""
    size = getattr(model, "vocabulary", None)
    if size is None:
        return
    for split, examples in task.data.arrays_by_part.items():
        token = find_wrong_label(examples["x"], size)
        if token is not None:
            allowed = f"0 to {size - 1}, the vocabulary of {type(model).__name__}"
            raise DataError.found(f"{split}['x']", f"token {token}", allowed)


def _make_model(model: Any, features: int, classes: int) -> Any:
    """Returns the model of a name or of a maker, with as many inputs and outputs as the data have.

    Args:
        model: a name of `MODELS`, a reference to the user's model (see `fedax.utils.plugins`), a
            class or function that makes one, or a model, which is returned.
        features: numbers of an example.
        classes: of the labels.

    Raises:
        UnknownName, InvalidInput: as `fedax.utils.plugins.find`.
    """
    if isinstance(model, str):
        allowed = "a model, or a class or a function that makes one"
        model = find("model", model, MODELS, allowed, lambda value: True)
    if not (inspect.isclass(model) or inspect.isroutine(model)):
        return model
    sizes = {"features": features, "classes": classes}
    names = inspect.signature(model).parameters
    with seed_torch():
        return model(**{name: size for name, size in sizes.items() if name in names})


@contextlib.contextmanager
def seed_torch() -> Iterator[None]:
    """Seeds PyTorch, if it is loaded, so that each process makes a module with the same weights."""
    torch = sys.modules.get("torch")
    with contextlib.nullcontext() if torch is None else torch.random.fork_rng(devices=[]):
        if torch is not None:
            torch.manual_seed(0)
        yield
