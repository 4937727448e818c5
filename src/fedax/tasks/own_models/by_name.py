"""Models by name, built-in ones and the user's, for tasks of labelled data."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.core import InvalidInput, Task
from fedax.data import FederatedData
from fedax.models import Model
from fedax.tasks.own_models.from_equinox import from_equinox
from fedax.tasks.own_models.from_flax import from_flax
from fedax.tasks.own_models.from_torch import from_torch
from fedax.tasks.own_models.outputs import accuracy, match_labels
from fedax.utils.plugins import find

SIZES = ("features", "classes")
"""Parameters of a model's maker that the task fills in: the columns of x, and the number of
labels."""


def make_model(
    owner: str, model: str | Any, models: Mapping[str, Callable[[int, int], Model]], *sizes: int
) -> Any:
    """Returns the model of a name or of a maker, with as many inputs and outputs as the data have.

    Args:
        owner: the task, for messages.
        model: a name of `models`, a reference to the user's model (see `fedax.utils.plugins`), a
            class or function that makes one, or a model, which is returned.
        models: makers of the built-in models by name, from features and classes.
        sizes: features and classes.

    Raises:
        UnknownName, InvalidInput: as `fedax.utils.plugins.find`; a maker that takes other
            arguments.
    """
    if isinstance(model, str) and model in models:
        return models[model](*sizes)
    allowed = "a model, or a class or a function that makes one"
    maker_or_model = find("model", model, models, allowed) if isinstance(model, str) else model
    if not (inspect.isclass(maker_or_model) or inspect.isroutine(maker_or_model)):
        return maker_or_model
    # the signature of an NNX class is that of its metaclass
    initializer = maker_or_model.__init__ if inspect.isclass(maker_or_model) else maker_or_model
    names = list(inspect.signature(initializer).parameters)
    maker = functools.partial(
        maker_or_model,
        **{name: size for name, size in zip(SIZES, sizes, strict=True) if name in names},
    )
    # made later, from the random numbers of a seed
    if draws := [name for name in ("rngs", "key") if name in names]:
        return _Drawn(maker, draws[0])
    try:
        with _seed_torch():
            return maker()
    except TypeError as error:
        allowed = (
            "a maker with some of the arguments features, classes, and rngs (of Flax NNX) "
            "or key (of Equinox)"
        )
        raise InvalidInput.found(
            f"{owner}(model=...)", f"{model!r}, which cannot be called: {error}", allowed
        ) from error


@contextlib.contextmanager
def _seed_torch() -> Iterator[None]:
    """Seeds PyTorch, if it is loaded, so that each process makes a module with the same weights."""
    torch = sys.modules.get("torch")
    with contextlib.nullcontext() if torch is None else torch.random.fork_rng(devices=[]):
        if torch is not None:
            torch.manual_seed(0)
        yield


class _Drawn:
    """A network that is made from random numbers: `rngs` of Flax NNX, or an Equinox `key`."""

    def __init__(self, maker: Callable[..., Any], argument: str) -> None:
        self.maker, self.argument = maker, argument

    def __call__(self, numbers: Any) -> Any:
        return self.maker(**{self.argument: numbers})


def is_network(model: Any) -> bool:
    """Returns whether a model is a module of Flax, Equinox or PyTorch, or makes one."""
    if isinstance(model, _Drawn) or _is_torch(model):
        return True
    # a module of Flax has `init` and can be called, as the models here
    if isinstance(model, Model) and not _is_flax(model):
        return False
    return isinstance(model, eqx.Module) or _is_flax(model)


def _is_flax(model: Any) -> bool:
    if "flax" not in sys.modules:
        return False
    from flax import linen, nnx

    return isinstance(model, linen.Module | nnx.Module)


def _is_torch(model: Any) -> bool:
    return "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module)


def classify_with(model: Any, data: FederatedData, l2: float, name: str | None) -> Task:
    """Returns the classification task of a network, whose outputs are a column of logits for each
    class.

    Raises:
        InvalidInput: a network that does not fit the data.
    """
    if _is_torch(model):
        make_task: Callable[..., Task] = from_torch
    elif model.argument == "rngs" if isinstance(model, _Drawn) else _is_flax(model):
        make_task = from_flax
    else:
        make_task = from_equinox
    # the data have checked the labels, and `_check_outputs` tells of missing outputs
    scores = {"accuracy": accuracy}
    task = make_task(model, cross_entropy, data, scores=scores, l2=l2, name=name)
    _check_outputs(task, data.classes)
    return task


def check_model(field: str, model: Any, allowed: str) -> None:
    """Refuses anything without the methods of `fedax.models.Model`."""
    if not (callable(getattr(model, "init", None)) and callable(model)):
        raise InvalidInput.of(field, model, allowed)


def check_logits(columns: int, classes: int) -> None:
    """Refuses a model whose logits are not one for each class.

    The loss of a label without a logit would have no lower bound.
    """
    if columns != classes:
        got, allowed = f"{columns} logits", f"{classes}, one for each class"
        raise InvalidInput.of("classification(model=...)", got, allowed)


def _check_outputs(task: Task, classes: int) -> None:
    """Refuses a network whose outputs are not one for each class, by their shape alone."""
    probe = {
        name: jax.ShapeDtypeStruct((3, *values.shape[1:]), values.dtype)
        for name, values in task.train.arrays.items()
    }
    # outputs of shape (batch, columns) are predictions, as they are or as probabilities
    predictions = task.predictions
    assert predictions is not None, "cross_entropy takes outputs of no other shape"
    params = jax.eval_shape(task.start, jax.random.key(0))
    outputs = jax.eval_shape(lambda p, e: predictions(p, e, None), params, probe)
    check_logits(outputs.shape[1], classes)


def cross_entropy(logits: Any, examples: Any) -> Any:
    """Returns the cross-entropy of each example.

    Raises:
        InvalidInput: outputs of another shape than (batch, classes).
    """
    if jnp.ndim(logits) != 2:
        raise InvalidInput.found(
            "model", f"outputs of shape {jnp.shape(logits)}", "outputs of shape (batch, classes)"
        )
    is_label = match_labels(jnp.arange(logits.shape[1])[None, :], examples["y"][:, None])
    return jax.nn.logsumexp(logits, axis=1) - jnp.where(is_label, logits, 0.0).sum(1)
