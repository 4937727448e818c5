"""Errors about mistakes in functions that users write for compiled programs, in their own terms."""

import contextlib
import inspect
from collections.abc import Callable, Generator

import equinox as eqx
from jax.errors import (
    ConcretizationTypeError,
    NonConcreteBooleanIndexError,
    TracerArrayConversionError,
    TracerIntegerConversionError,
)

_NEEDS_VALUES = (
    ConcretizationTypeError,
    NonConcreteBooleanIndexError,
    TracerArrayConversionError,
    TracerIntegerConversionError,
)
"""JAX's errors about lines that need the values of a traced array."""

IN_A_METHOD = (
    "Choose between values by jnp.where; a hyperparameter may be static, hyper(..., static=True). "
    "engine=fedax.Eager() compiles no method, so that you can debug it."
)
"""Advice on values of arrays in methods."""


def name_of(function: Callable[..., object]) -> str:
    """Returns the name of a function for messages, a method with that of its object's class.

    >>> name_of("text".upper), name_of(max)
    ('str.upper', 'max')
    """
    name = getattr(function, "__name__", type(function).__name__)
    owner = getattr(function, "__self__", None)
    is_method = owner is not None and not inspect.ismodule(owner)
    return f"{type(owner).__name__}.{name}" if is_method else name


def described(value: object) -> str:
    """Returns a value in words, arrays by their shapes.

    >>> import jax.numpy as jnp
    >>> described((jnp.zeros(3, jnp.float32), None)), described(None), described(2.5)
    ('(f32[3], None)', 'None', '2.5')
    """
    # whether a number came from Python is of no account
    text = eqx.tree_pformat(value, width=10_000).replace("weak_", "")
    return f"an array {text}" if eqx.is_array(value) else text


@contextlib.contextmanager
def explained(function: Callable[..., object], advice: str = IN_A_METHOD) -> Generator[None]:
    """Adds a note with the user's function to JAX's errors about what compiled functions cannot do.

    Args:
        function: that runs inside the context.
        advice: on what to do.
    """
    try:
        yield
    except _NEEDS_VALUES as error:
        # a work function runs within a round, which is not to blame
        if "is compiled" not in str(getattr(error, "__notes__", "")):
            error.add_note(
                f"{name_of(function)} is compiled without the values of arrays. {advice}"
            )
        raise
