"""Results of the functions that a method consists of are checked, and what compiled
functions cannot do is named in the terms of who wrote the method.
"""

from collections.abc import Callable
from typing import NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedax.core.algorithm import Algorithm, State
from fedax.core.federation import Upload
from fedax.core.validation.misuse import described, explained, name_of
from fedax.errors import InvalidInput


def as_upload(work: Callable[..., PyTree], output: PyTree, receives: bool) -> Upload[PyTree]:
    """Returns what a work function returned as an upload.

    Args:
        work: the function.
        output: what it returned.
        receives: whether that is the client's new state rather than an `Upload`.

    Raises:
        InvalidInput: it is something else.
    """
    if output is None or isinstance(output, Upload) == receives:
        _refuse(work, output, "the client's new state alone" if receives else "an Upload")
    upload = Upload((), state=output) if receives else output
    # numbers of Python have no shape
    return jax.tree.map(jnp.asarray, upload)


def check_state(function: Callable[..., PyTree], old: PyTree, new: PyTree) -> None:
    """Refuses a new state, of a round or of a client, of another form than the one before it."""
    if described(new) != described(old):
        _refuse(function, new, f"a state like the one before, {described(old)}")


def call_model(algorithm: Algorithm[State], state: State, dim: int) -> Float[Array, "dim"]:
    """Calls `Algorithm.model` and checks that it returns a flat vector.

    Raises:
        InvalidInput: it returns something else.
    """
    with explained(algorithm.model):
        model = algorithm.model(state)
    if not eqx.is_array_like(model) or jnp.shape(model) != (dim,):
        _refuse(algorithm.model, model, f"the model as an array of shape {(dim,)}")
    return model


def _refuse(function: Callable[..., PyTree], result: object, allowed: str) -> NoReturn:
    raise InvalidInput.found(f"{name_of(function)}, its result", described(result), allowed)
