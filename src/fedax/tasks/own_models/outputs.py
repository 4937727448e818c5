"""Tasks of models that are written with a library: the parts that all of them share."""

import dataclasses
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedax.core import DataError, InvalidInput, Task
from fedax.examples.arrays import as_array
from fedax.examples.integer_ranges import LABELS_HINT, find_wrong_label
from fedax.tasks.clients import Clients, read_clients
from fedax.tasks.own_models.from_loss import from_loss
from fedax.tasks.own_models.padding import leaves_padding_out

Inputs = str | tuple[str, ...] | Callable[[Any], Any] | None
"""The arguments of a model: an array's name, several, or a function of the examples; by default x,
or the only one besides y.
"""
FLAGS = {
    "train": False,
    "training": False,
    "is_training": False,
    "is_train": False,
    "deterministic": True,
    "inference": True,
    "use_running_average": True,
}
"""The names under which models are told whether they train, and whether they mean the opposite."""
_EXAMPLES = 8
"""Examples that a model is made and tried on."""


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """A model in one form, whatever library it is of.

    Attributes:
        apply: `(params, state, inputs, key, mask) -> (outputs, new state)`; the key is None in
            evaluation.
        start: the starting point, a pytree or a function of a key.
        state: what it updates without a gradient, None if there is nothing such.
        sees_padding: whether `apply` takes a mask of padding and leaves that out of the state;
            `from_network` checks it.
    """

    apply: Callable[..., Any]
    start: Any
    state: PyTree = None
    sees_padding: bool = False

    def initial_params(self) -> PyTree:
        """Returns the starting point, that of one random key if it depends on a key."""
        # a function of a key; a model itself may be callable too
        return self.start(jax.random.key(0)) if inspect.isroutine(self.start) else self.start

    def __reduce_ex__(self, protocol: Any) -> Any:
        reason = "a model of another library, and a history that predicts by it, cannot be pickled"
        hint = "Write history.save(FILE), or torch.save(history.state_dict(), FILE)."
        raise InvalidInput.because("pickle", reason, hint)

    def __deepcopy__(self, memo: Any = None) -> "Network":
        return self

    # copies would be made by `__reduce_ex__`
    __copy__ = __deepcopy__


@dataclasses.dataclass(frozen=True, eq=False)
class OfOutputs:
    """A per-example function of a network's outputs.

    Attributes:
        network: the model.
        function: of the outputs and the examples.
        inputs: see `Inputs`.
        trains: whether it is the loss, which returns the new state.
    """

    network: Network
    function: Callable[..., Any]
    inputs: Inputs
    trains: bool

    def __call__(
        self,
        params: PyTree,
        examples: Any,
        *,
        key: Any = None,
        state: PyTree = None,
        mask: Any = None,
    ) -> Any:
        inputs = cast_inputs(select_inputs(examples, self.inputs), params)
        outputs, new_state = self.network.apply(params, state, inputs, key, mask)
        values = self.function(outputs, examples)
        return (
            (values, new_state)
            if self.trains and self.network.state is not None and key is not None
            else values
        )

    @property
    def __signature__(self) -> inspect.Signature:
        """Returns the signature: with the state if there is one, the mask if that matters."""
        positional = ["params", "examples"]
        keywords = ["key"] + ["state"] * (self.network.state is not None)
        # padding matters only where a state is learned from the batch
        keywords += ["mask"] * (self.network.state is not None and self.network.sees_padding)
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        parameters = [(name, kinds[0]) for name in positional] + [
            (name, kinds[1]) for name in keywords
        ]
        return inspect.Signature([inspect.Parameter(name, kind) for name, kind in parameters])


def select_inputs(examples: Any, inputs: Inputs, maker: str = "") -> tuple[Any, ...]:
    """Returns the arguments of a model; `maker` is for the message where there is no x."""
    if callable(inputs):
        selected = inputs(examples)
        return selected if isinstance(selected, tuple) else (selected,)
    if inputs is None and not isinstance(examples, Mapping):
        return (examples,)
    if inputs is None:
        selected = (
            ["x"]
            if "x" in examples
            else [name for name in examples if name != "y"] or list(examples)
        )
        if len(selected) != 1:
            allowed = f"one of {', '.join(selected)}, or several; there is no x"
            raise InvalidInput.found(f"{maker}(inputs=...)", "nothing", allowed)
        return (examples[selected[0]],)
    return tuple(examples[name] for name in ((inputs,) if isinstance(inputs, str) else inputs))


def cast_inputs(inputs: tuple[Any, ...], params: PyTree) -> tuple[Any, ...]:
    """Casts inputs of real numbers to the precision of the parameters.

    Layers of 32 bits expect it.
    """
    kinds = {
        leaf.dtype
        for leaf in jax.tree.leaves(params)
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
    }
    if len(kinds) != 1:
        return inputs
    (kind,) = kinds
    return tuple(x.astype(kind) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in inputs)


def from_network(
    maker: str,
    make: Callable[[tuple[Any, ...]], Network],
    loss: Callable[..., Any],
    clients: Any,
    *,
    inputs: Inputs = None,
    scores: Mapping[str, Callable[..., Any]] | None = None,
    test: Any = None,
    validation: Any = None,
    client: str | None = None,
    central: Any = None,
    name: str | None = None,
    predict: Callable[..., Any] | None = None,
    **options: Any,
) -> Task:
    """Makes a task of a network.

    Args:
        maker: the public function, for messages.
        make: the network, given the inputs of some examples.
        loss: of outputs and examples.
        clients, test, validation, client, central, name, options: as `from_loss`.
        inputs: see `Inputs`.
        scores: further functions of outputs and examples by name.
        predict: the predictions, a function of outputs and examples; by default the softmax of
            outputs with a column for each class, else the outputs.
    """
    data = read_clients(clients, test, client, validation)
    if not data.train:
        raise InvalidInput.of("clients", "an empty list", "at least one client")
    examples = _take_examples(data)
    try:
        arguments = select_inputs(examples, inputs, maker)
    except (KeyError, StopIteration) as error:
        available = sorted(examples) if isinstance(examples, Mapping) else "one array"
        raise InvalidInput.of(
            f"{maker}(inputs=...)", inputs, f"names of arrays of the clients, who have {available}"
        ) from error
    try:
        network = make(arguments)
    except InvalidInput:
        raise
    except Exception as error:
        shapes = [np.shape(argument) for argument in arguments]
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        got = (
            f"a model that cannot be made on inputs of shapes {shapes} "
            f"({type(error).__name__}: {reason})"
        )
        raise InvalidInput.found(
            f"{maker}(module=...)", got, "a model that fits the clients' data"
        ) from error
    if network.state is not None and network.sees_padding:
        params = network.initial_params()
        masked = leaves_padding_out(network, params, cast_inputs(arguments, params))
        network = dataclasses.replace(network, sees_padding=masked)
    functions = {
        key: OfOutputs(network, score, inputs, False) for key, score in (scores or {}).items()
    }
    output_shape = _infer_output_shape(network, arguments)
    columns = _count_logits(output_shape, examples)
    # logits become probabilities; other outputs predict as they are if they have a row per example
    if predict is None and columns > 1:
        predict = probabilities
    elif predict is None and getattr(output_shape, "shape", ())[:1] == (_EXAMPLES,):
        predict = as_they_are
    task_data = data._replace(
        name=name or data.name, central=data.central if central is None else central
    )
    training_loss = OfOutputs(network, loss, inputs, True)
    if columns:
        _check_labels(maker, training_loss, data, columns)
    other_label = None
    if columns > 1 and "accuracy" not in functions:
        # accuracy compares labels with the numbers of columns
        other_label = _find_other_label(task_data, columns)
        if other_label is None:
            functions["accuracy"] = OfOutputs(network, accuracy, inputs, False)
    try:
        task = from_loss(
            training_loss,
            network.start,
            task_data,
            scores=functions,
            state=network.state,
            name=task_data.name,
            predict=None if predict is None else OfOutputs(network, predict, inputs, False),
            **options,
        )
    except InvalidInput as error:
        for function in (loss, *(scores or {}).values()):
            if hint := _hint_at_arrays(function, output_shape, examples):
                raise InvalidInput(f"{error} {hint}") from error
        raise
    if other_label is not None:
        # no error: the labels may be numbers of another kind, such as counts
        warnings.warn(
            f"{maker}(...): the task has no score 'accuracy', because of the label {other_label} "
            f"with {columns} columns of outputs. {LABELS_HINT} Or give scores={{'accuracy': ...}}.",
            stacklevel=3,
        )
    return task


def _hint_at_arrays(function: Callable[..., Any], outputs: Any, examples: Any) -> str:
    """Returns how to write a function of outputs and labels, such as Optax's losses, which fails on
    the dict of all arrays; "" for any other function.

    Args:
        function: of outputs and examples.
        outputs: shapes of the outputs for the examples.
        examples: some of the clients'.
    """
    if not isinstance(examples, Mapping) or "y" not in examples:
        return ""

    def fails(argument: Any) -> bool:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            try:
                jax.eval_shape(function, outputs, argument)
            except Exception:
                return True
        return False

    if not fails(dict(examples)) or fails(examples["y"]):
        return ""
    name = getattr(function, "__name__", "function")
    return (
        "It gets all arrays of the examples, not y alone: write "
        f"lambda outputs, e: {name}(outputs, e['y'])."
    )


def _take_examples(data: Clients) -> Any:
    """Returns examples of the first client, from its first to its last."""
    client = data.train[0]
    arrays = client if isinstance(client, Mapping) else {"x": client}
    rows = {name: as_array(values, f"clients[0][{name!r}]") for name, values in arrays.items()}
    for name, values in rows.items():
        if not values.ndim or not len(values):
            raise InvalidInput.found(f"clients[0][{name!r}]", "no rows", "at least one example")
    examples = {
        name: jnp.asarray(values[np.linspace(0, len(values) - 1, _EXAMPLES).astype(int)])
        for name, values in rows.items()
        if values.dtype.kind in "fiub"
    }
    return examples if isinstance(client, Mapping) else examples["x"]


def _infer_output_shape(network: Network, arguments: tuple[Any, ...]) -> Any:
    """Returns the shapes and types of a network's outputs for examples, None if they cannot be
    told.
    """

    def outputs() -> Any:
        params = network.initial_params()
        return network.apply(params, network.state, cast_inputs(arguments, params), None, None)[0]

    try:
        return jax.eval_shape(outputs)
    except Exception:  # said by the probe of the loss, which tells more
        return None


def _count_logits(output_shape: Any, examples: Any) -> int:
    """Returns the number of columns of outputs that may be logits, else 0.

    They may be if there are whole labels y, one for each example.
    """
    y = examples.get("y") if isinstance(examples, Mapping) else None
    if y is None or y.dtype.kind not in "iu" or y.ndim != 1:
        return 0
    return output_shape.shape[1] if getattr(output_shape, "ndim", None) == 2 else 0


def _find_other_label(data: Clients, columns: int) -> Any:
    """Returns the first label that is no number of a column of the outputs, or None."""
    clients = [*data.train, *(data.test or ()), *(data.validation or ()), data.central]
    labels = [arrays["y"] for arrays in clients if isinstance(arrays, Mapping) and "y" in arrays]
    other_labels = (find_wrong_label(y, columns) for y in labels)
    return next((label for label in other_labels if label is not None), None)


def _check_labels(maker: str, loss: OfOutputs, data: Clients, columns: int) -> None:
    """Refuses labels for which the model has no output, if the loss cannot do without.

    That is, if it is not finite for the largest one.
    """
    # the largest label of all clients, and the example that has it
    labels = [as_array(arrays["y"], f"clients[{k}]['y']") for k, arrays in enumerate(data.train)]
    most = max((k for k, y in enumerate(labels) if y.size), key=lambda k: int(labels[k].max()))
    client, row = data.train[most], int(labels[most].argmax())
    label = int(labels[most][row])
    if label < columns:
        return
    example = {
        name: jnp.asarray(np.asarray(values)[row : row + 1]) for name, values in client.items()
    }
    network = loss.network
    params = network.initial_params()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        value = loss(params, example, key=None, state=network.state)
    if not np.isfinite(value).all():
        got = (
            f"the label {label}, of which the loss is {float(value[0])}, for outputs of shape "
            f"(batch, {columns})"
        )
        hint = "Give the model an output for each class" + (
            ", or let the loss take outputs[:, 0]." if columns == 1 else "."
        )
        raise DataError.found(f"{maker}(clients=...)", got, f"labels from 0 to {columns - 1}", hint)


def probabilities(outputs: Any, examples: Any) -> Any:
    """Returns the probabilities of all classes, of outputs that are logits."""
    return jax.nn.softmax(outputs, axis=1)


def as_they_are(outputs: Any, examples: Any) -> Any:
    """Returns the outputs, which are the predictions of a model that is no classifier."""
    return outputs


def accuracy(outputs: Any, examples: Any) -> Any:
    """Returns 1 for each example whose label has the largest output, else 0."""
    return match_labels(jnp.argmax(outputs, axis=1), examples["y"]).astype(outputs.dtype)


def match_labels(classes: Any, labels: Any) -> Any:
    """Returns whether classes are labels, whose type may be too narrow for all classes."""
    if jnp.issubdtype(labels.dtype, jnp.integer):
        return classes == labels.astype(classes.dtype)
    return classes.astype(labels.dtype) == labels


_LIKE_FLAGS = re.compile("train|eval|infer|determin|running")
"""Parts of names of arguments that may tell a model whether it trains."""


def find_training_flags(function: Callable[..., Any], maker: str) -> tuple[str, ...]:
    """Returns the arguments that tell a model whether it trains.

    Warns of an argument that seems to do so under a name that is not known: it would keep its
    default, so that the model would always be in one mode.

    Args:
        function: that calls the model.
        maker: the public function, for the message.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()
    flags = tuple(name for name in FLAGS if name in parameters)
    for name, parameter in parameters.items():
        # only a truth value is a flag, and one without a default has to be given
        if name not in FLAGS and isinstance(parameter.default, bool) and _LIKE_FLAGS.search(name):
            warnings.warn(
                f"{maker}(module=...): the argument {name!r} keeps its default, "
                f"{parameter.default}, in training and in evaluation. Name it one of "
                f"{', '.join(FLAGS)} if it says whether the module trains.",
                stacklevel=2,
            )
    return flags


def training_arguments(flags: tuple[str, ...], training: bool) -> dict[str, bool]:
    """Returns the keyword arguments that tell a model whether it trains."""
    # `FLAGS` is True for names that mean the opposite
    return {flag: training is not FLAGS[flag] for flag in flags}


def none_if_empty(tree: PyTree) -> PyTree | None:
    """Returns a state, or None if it holds nothing."""
    return tree if jax.tree.leaves(tree) else None
