"""Calls of the functions that a method consists of: mistakes in them are named in the terms of who
wrote the method.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core.algorithm import Algorithm
from fedax.core.client import Client
from fedax.core.federation import Cohort, Federation, Memory, Upload, is_memory
from fedax.core.validation.misuse import Misuse, described, explained, name_of
from fedax.errors import InvalidInput

Verb = TypeVar("Verb", bound=Callable[..., Any])


def verb(function: Verb) -> Verb:
    """Decorates a verb of `fed` so that wrong arguments raise `Misuse`, before anything is done."""
    name = f"fed.{function.__name__}"
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(fed: Federation, *values: Any, **options: Any) -> Any:
        try:
            arguments = signature.bind(fed, *values, **options).arguments
        except TypeError as error:
            raise Misuse(f"{name}(...): {error}.") from None
        for argument, value in arguments.items():
            _check_argument(name, argument, value)
        return function(fed, *values, **options)

    return call  # type: ignore[return-value]


def _check_argument(name: str, argument: str, value: Any) -> None:
    """Refuses an argument of a verb that is not what it has to be.

    Raises:
        Misuse: a cohort, a memory or a work function that is something else.
    """
    field, hint = f"{name}({argument}=...)", ""
    if argument in ("work", "send", "receive", "answer"):
        if callable(value):
            return
        allowed = "a work function, a method of the algorithm"
        hint = f"Write {name}(self.train, fed.sample(), w)." if argument == "work" else ""
    elif argument == "cohort":
        if isinstance(value, Cohort):
            return
        allowed = "a cohort, fed.sample() or fed.everyone"
        hint = f"Write {name}(self.train, fed.sample(), w)."
        if callable(value):
            hint = f"Write fed.{getattr(value, '__name__', 'sample')}(), with parentheses."
    elif argument == "memory":
        if value is None or isinstance(value, Memory):
            return
        allowed, hint = "the clients' memories", "Make them in `init`, by fed.memory(...)."
    else:
        return
    got = described(value)
    if callable(value):
        got = f"the function {name_of(value).rpartition('.')[2]}"
    elif isinstance(value, eqx.Module):
        got = f"an object of {type(value).__name__}"
    raise Misuse.found(field, got, allowed, hint)


def call_work(
    work: Callable[..., Any], client: Client, inputs: Sequence[Any], receives: bool = False
) -> Any:
    """Calls a work function and checks what it returns.

    Args:
        work: the function.
        client: its client.
        inputs: what it gets beside the client: what was sent down, and memories.
        receives: whether it returns the client's new memory rather than an `Upload`.

    Raises:
        InvalidInput: it returns something else, takes other arguments, or does what compiled
            functions cannot do.
    """
    output = _call(work, client, *inputs)
    if receives:
        if output is None or isinstance(output, Upload):
            got = "None" if output is None else "an Upload"
            allowed = "the client's new memory, without an Upload"
            raise InvalidInput.found(f"{name_of(work)}, its result", got, allowed, _return(output))
    elif not isinstance(output, Upload):
        hint = "Write return Upload(...)."
        raise InvalidInput.found(
            f"{name_of(work)}, its result", described(output), "an Upload", hint
        )
    return output


def _call(function: Callable[..., Any], *values: Any) -> Any:
    """Calls a function of a method.

    Raises:
        InvalidInput: it takes another number of arguments, or does what compiled functions cannot
            do.
    """
    with explained(function):
        try:
            return function(*values)
        except TypeError:
            signature = inspect.signature(function)
            try:
                signature.bind(*values)
            except TypeError:
                first = "client" if isinstance(values[0], Client) else "fed"
                got = " and ".join([first, *map(described, values[1:])])
                raise InvalidInput.found(
                    f"{name_of(function)}(...)", got, f"the arguments that it takes, {signature}"
                ) from None
            raise


def call_init(algorithm: Algorithm[Any], fed: Federation, w: Float[Array, "dim"]) -> Any:
    """Calls `Algorithm.init` and checks that the state has a model.

    Raises:
        InvalidInput: a state without a model, of a method that does not define `model`.
    """
    state = _call(algorithm.init, fed, w)
    # a model that a method computes itself is checked where it is used
    if state is None or type(algorithm).model is Algorithm.model:
        model, name = getattr(state, "w", state), name_of(algorithm.init)
        if _shape(model) != w.shape:
            allowed = f"the model, an array of shape {w.shape}, or a record with it as field w"
            hint = _return(state) or "For another state define model(self, state)."
            raise InvalidInput.found(f"{name}, its result", described(state), allowed, hint)
    return state


def call_round(
    algorithm: Algorithm[Any], fed: Federation, state: Any, compiled: bool = False
) -> Any:
    """Calls `Algorithm.round` and checks that it returns a state like the one before.

    Args:
        algorithm, fed, state: of the round.
        compiled: whether states must also be of one structure and of equal shapes.

    Raises:
        InvalidInput: another state, or something in the round that compiled functions cannot do.
    """
    new_state = _call(algorithm.round, fed, state)
    (old, old_tree), (new, new_tree) = (
        jax.tree.flatten(tree, is_leaf=is_memory) for tree in (state, new_state)
    )
    alike = len(old) == len(new)
    if alike and compiled:
        alike = old_tree == new_tree and [*map(_shape, old)] == [*map(_shape, new)]
    if not alike:
        allowed = f"a state like that of the round before, {described(state)}"
        raise InvalidInput.found(
            f"{name_of(algorithm.round)}, its result",
            described(new_state),
            allowed,
            _return(new_state),
        )
    return new_state


def call_model(algorithm: Algorithm[Any], state: Any, dim: int) -> Float[Array, "dim"]:
    """Calls `Algorithm.model` and checks that it returns a flat vector.

    Raises:
        InvalidInput: it returns something else.
    """
    with explained(algorithm.model):
        model = algorithm.model(state)
    if _shape(model) != (dim,):
        allowed = f"the model as an array of shape {(dim,)}"
        name = f"{name_of(algorithm.model)}, its result"
        raise InvalidInput.found(name, described(model), allowed, _return(model))
    return model


def _shape(leaf: Any) -> tuple[int, ...] | None:
    """Returns the shape of an array or a number, None for anything else."""
    return jnp.shape(leaf) if eqx.is_array_like(leaf) else None


def _return(result: Any) -> str:
    return "Write return before the result." if result is None else ""
