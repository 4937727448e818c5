"""Types and ranges of options, declared on the parameters of the functions that take them.

Python calls, experiment files, the JSON schema and the command line read the same annotations:

    def digits(clients: Clients = 20, test_fraction: Share = 0.2): ...
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from fedax.core import InvalidInput, UnknownName
from fedax.utils.numbers import python_numbers

P = ParamSpec("P")
R = TypeVar("R")

Count: TypeAlias = Annotated[int, Field(strict=True, ge=1)]
Clients: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
Seed: TypeAlias = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
"""What every generator in use here takes."""
Share: TypeAlias = Annotated[float, Field(strict=True, ge=0, lt=1)]
Positive: TypeAlias = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NonNegative: TypeAlias = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Switch: TypeAlias = Annotated[bool, Field(strict=True)]
Split: TypeAlias = Literal["shuffled", "in_order", "shuffled_rows", "in_order_rows"]
"""See `fedax.examples.overlap` for the rule that the first two follow."""
Folder: TypeAlias = str | Path | None


def check(
    owner: str, options: Mapping[str, inspect.Parameter], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns values as the types that options declare, with Python's numbers for NumPy's.

    Values of other names stay as they are.

    Args:
        owner: names the function in messages.
        options: its annotated parameters.
        values: by the names of parameters.

    >>> def deal(clients: Clients = 20): ...
    >>> check("deal", options_of(deal), {"clients": 0})
    Traceback (most recent call last):
        ...
    fedax.errors.InvalidInput: deal(clients=...): got 0; allowed: greater than or equal to 1.

    Raises:
        InvalidInput: the first value of another type or out of its range; of a dictionary, an
            unknown key.
    """
    plain = {name: _python_value(value) for name, value in values.items()}
    types = tuple((name, option.annotation) for name, option in options.items())
    try:
        return plain | _reader(types)(plain)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        allowed = first["msg"].removeprefix("Input should be ")
        if first["type"] == "extra_forbidden":
            keys = options[name].annotation.__annotations__
            raise UnknownName.among(f"key of {name}", str(first["loc"][-1]), keys) from None
        raise InvalidInput.of(f"{owner}({name}=...)", plain[name], allowed) from None


def options_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Returns the named parameters of a function, without `*args` and `**options`."""
    parameters = inspect.signature(function).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in parameters.items() if p.kind not in variadic}


def json_schema(options: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Returns the JSON schema of each option.

    >>> def deal(clients: Clients = 20): ...
    >>> json_schema(options_of(deal))
    {'clients': {'maximum': 10000000, 'minimum': 1, 'type': 'integer', 'default': 20}}
    """
    schemas: dict[str, Any] = {}
    for name, option in options.items():
        schemas[name] = TypeAdapter(option.annotation).json_schema()
        if option.default not in (option.empty, None):
            schemas[name]["default"] = option.default
    return schemas


def validated(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function so that each call checks its arguments; see `check`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.arguments |= check(function.__name__, options_of(function), bound.arguments)
        return function(*bound.args, **bound.kwargs)

    return call


@functools.cache
def _reader(types: tuple[tuple[str, Any], ...]) -> Callable[[Any], Any]:
    # text is an annotation that only the module of a user can read
    readable = {
        name: Any if kind is inspect.Parameter.empty else kind
        for name, kind in types
        if not isinstance(kind, str)
    }
    options = TypedDict("options", readable, total=False)  # type: ignore[misc]
    options.__pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)  # type: ignore[attr-defined]
    return TypeAdapter(options).validate_python


def _python_value(value: Any) -> Any:
    # the nearest short decimal: a share of np.float32(0.2) is a fifth
    narrow = isinstance(value, np.floating) and value.dtype.itemsize < 8
    return float(str(value)) if narrow else python_numbers(value)
