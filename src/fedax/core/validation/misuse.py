"""Errors about mistakes in functions that users write for compiled programs, in their own terms."""

import contextlib
import inspect
import os
import traceback
from collections.abc import Callable, Generator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.errors import (
    ConcretizationTypeError,
    NonConcreteBooleanIndexError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
)

from fedax.errors import InvalidInput

_NEEDS_VALUES: dict[type[Exception], tuple[str, str]] = {
    # subclasses before their bases
    TracerBoolConversionError: (
        "asks whether an array is true, as `if`, `while`, `and`, `or` and `not` do",
        "Write jnp.where(condition, a, b)",
    ),
    NonConcreteBooleanIndexError: (
        "selects entries of an array by a condition",
        "Write jnp.where(condition, a, b)",
    ),
    TracerArrayConversionError: (
        "converts an array to one of NumPy",
        "Write jax.numpy (jnp) for NumPy (np)",
    ),
    TracerIntegerConversionError: (
        "takes an entry of an array for a whole number of Python, as range() does",
        "Write jnp.take or jax.lax.fori_loop",
    ),
    ConcretizationTypeError: (
        "converts an array to a number of Python, as float() and int() do",
        "Keep the array and use jax.numpy (jnp)",
    ),
}
"""What a line does that needs the values of a traced array, and what to write instead."""

IN_A_METHOD = (
    "; or declare the hyperparameter static, hyper(..., static=True), if it is one; or debug with "
    "engine=fedax.Eager(), which compiles no method."
)
"""The end of the advice on values of arrays in methods."""


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function for messages, a method with that of its object's class.

    >>> name_of("text".upper), name_of(max)
    ('str.upper', 'max')
    """
    name = getattr(function, "__name__", type(function).__name__)
    owner = getattr(function, "__self__", None)
    is_method = owner is not None and not inspect.ismodule(owner)
    return f"{type(owner).__name__}.{name}" if is_method else name


def described(value: Any) -> str:
    """Returns a value in words, arrays by their shapes.

    >>> described((jnp.zeros(3, jnp.float32), None)), described(None), described(2.5)
    ('(f32[3], None)', 'None', '2.5')
    """
    forms = jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))
            if eqx.is_array(leaf)
            else leaf
        ),
        value,
    )
    text = eqx.tree_pformat(forms, short_arrays=True, struct_as_array=True, width=10_000)
    return f"an array {text}" if eqx.is_array(value) else text


@contextlib.contextmanager
def explained(
    function: Callable[..., Any], name: str = "", ending: str = IN_A_METHOD
) -> Generator[None]:
    """Names the user's function in errors about what compiled functions cannot do.

    Args:
        function: that runs inside the context.
        name: of it in messages, by default that of `name_of`.
        ending: of the advice on values of arrays.

    Raises:
        InvalidInput: an array whose value is needed while the program is compiled. Its cause is the
            error itself.
    """
    try:
        yield
    except tuple(_NEEDS_VALUES) as error:
        does, instead = next(
            words for kind, words in _NEEDS_VALUES.items() if isinstance(error, kind)
        )
        reason = f"{does}{_line(function, error)}, but the program is compiled without its values"
        raise InvalidInput.because(
            name or name_of(function), reason, f"{instead}{ending}"
        ) from error


def _line(function: Callable[..., Any], error: Exception) -> str:
    """Returns the place of an error in the file of a function, or nothing if it is not there."""
    plain: Any = inspect.unwrap(getattr(function, "__func__", function))
    file = getattr(getattr(plain, "__code__", None), "co_filename", None)
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]
    return f" in {os.path.basename(str(file))}, line {lines[-1]}" if lines else ""
