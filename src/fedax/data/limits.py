"""Ranges of options, declared beside the function that takes them and checked before any work."""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fedax.core import InvalidInput
from fedax.core.hyper import Hyper
from fedax.utils.numbers import python_number, with_python_numbers

P = ParamSpec("P")
R = TypeVar("R")


def whole(low: float = -math.inf, high: float = math.inf) -> Hyper:
    """Declares whole numbers from `low` to `high`."""
    return Hyper("", 0, low=low, high=high)


def real(low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> Hyper:
    """Declares finite numbers from `low` (left out if `open_low`) to below `high`."""
    return Hyper("", 0.0, low=low, high=high, open_low=open_low, open_high=True)


def choice(*values: Any) -> Hyper:
    """Declares one of the given values."""
    return Hyper("", values[0], choices=values)


CLIENTS = whole(low=1, high=10_000_000)
SEED = whole(low=0, high=2**32 - 1)  # what every generator in use here takes
TEST_FRACTION = real(low=0, high=1)
SPLIT = choice("shuffled", "in_order", "shuffled_rows", "in_order_rows")
"""See `fedax.examples.overlap` for the rule that the first two follow."""
DEALT = {"clients": CLIENTS, "seed": SEED, "test_fraction": TEST_FRACTION, "split": SPLIT}
"""Options of data sets that are dealt out to clients."""
POOLED = DEALT | {"merged": choice(False, True), "examples": whole(low=0)}
"""Options of images with an official training and test part; 0 examples are all."""


def check(owner: str, limits: dict[str, Hyper], values: dict[str, Any]) -> None:
    """Raises `InvalidInput` for the first value outside its limits, as `owner(name=...)`.

    Names without limits pass.
    """
    for name, value in values.items():
        if name in limits and not limits[name].allows(value):
            raise InvalidInput.of(f"{owner}({name}=...)", value, limits[name].allowed)


_WORDS = {
    str: "text",
    Path: "a path",
    int: "whole numbers",
    float: "numbers",
    bool: "true or false",
    type(None): "None",
}


def check_types(owner: str, function: Callable[..., Any], values: dict[str, Any]) -> None:
    """Raises `InvalidInput` for the first value that is not of its parameter's plain type.

    Plain types are text, paths, numbers and truth values.

    >>> def read(file: str | Path, width: int = 3): ...
    >>> check_types("read", read, {"file": 3})
    Traceback (most recent call last):
        ...
    fedax.errors.InvalidInput: read(file=...): got 3; allowed: text or a path.
    """
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if name not in values or not set(kinds) <= set(_WORDS):
            continue
        value = python_number(values[name])
        # a bool is an int in Python, and a whole number passes for a real one
        fits = (
            bool in kinds
            if isinstance(value, bool)
            else isinstance(value, (*kinds, *[int] * (float in kinds)))
        )
        if not fits:
            allowed = " or ".join(
                dict.fromkeys(
                    _WORDS[kind] for kind in kinds if kind is not int or float not in kinds
                )
            )
            raise InvalidInput.of(f"{owner}({name}=...)", value, allowed)


def checked(**limits: Hyper) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function so that its arguments are checked at every call.

    Against `limits`, or else against their plain types. The function gets Python's numbers in
    place of NumPy's scalars.

    >>> @checked(clients=whole(low=1))
    ... def deal(clients):
    ...     return clients
    >>> deal(0)
    Traceback (most recent call last):
        ...
    fedax.errors.InvalidInput: deal(clients=...): got 0; allowed: whole numbers in [1, 2147483647].
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        @with_python_numbers
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = signature.bind(*args, **kwargs).arguments
            if arguments.get("options"):  # go on to a partition, by their names
                # knows the partitions, which import this module
                from fedax.data.options import check_partition_options

                check_partition_options(function.__name__, function, arguments)
            check(function.__name__, limits, arguments)
            check_types(
                function.__name__,
                function,
                {name: value for name, value in arguments.items() if name not in limits},
            )
            return function(*args, **kwargs)

        wrapper.__dict__["limits"] = limits
        return wrapper

    return decorate
