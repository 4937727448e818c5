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
    found = find("model", model, models, allowed) if isinstance(model, str) else model
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        return found
    # the signature of an NNX class is that of its metaclass
    takes = found.__init__ if inspect.isclass(found) else found
    names = list(inspect.signature(takes).parameters)
    maker = functools.partial(
        found, **{name: size for name, size in zip(SIZES, sizes, strict=True) if name in names}
    )
    # made later, from the random numbers of a seed
    if draws := [name for name in ("rngs", "key") if name in names]:
        return _Drawn(maker, draws[0])
    try:
        with _seeded():
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
def _seeded() -> Iterator[None]:
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
        return from_torch(model, cross_entropy, data, l2=l2, name=name)
    flax = model.argument == "rngs" if isinstance(model, _Drawn) else _is_flax(model)
    return (from_flax if flax else from_equinox)(model, cross_entropy, data, l2=l2, name=name)


def cross_entropy(logits: Any, examples: Any) -> Any:
    """Returns the cross-entropy of each example.

    Raises:
        InvalidInput: outputs of another shape than (batch, classes).
    """
    if jnp.ndim(logits) != 2:
        raise InvalidInput.found(
            "model", f"outputs of shape {jnp.shape(logits)}", "outputs of shape (batch, classes)"
        )
    labels = examples["y"]
    chosen = jnp.arange(logits.shape[1], dtype=labels.dtype)[None, :] == labels[:, None]
    return jax.nn.logsumexp(logits, axis=1) - jnp.where(chosen, logits, 0.0).sum(1)
