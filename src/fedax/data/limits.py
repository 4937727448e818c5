"""Ranges of options, declared beside the function that takes them and checked before it does any work."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fedax.core import InvalidInput
from fedax.core.hyper import Hyper

P = ParamSpec("P")
R = TypeVar("R")


def whole(low: float = -math.inf, high: float = math.inf) -> Hyper:
    """Whole numbers from `low` to `high`."""
    return Hyper("", 0, low=low, high=high)


def real(low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> Hyper:
    """Finite numbers from `low` (left out if `open_low`) to below `high`."""
    return Hyper("", 0.0, low=low, high=high, open_low=open_low, open_high=True)


def choice(*values: Any) -> Hyper:
    """One of the given values."""
    return Hyper("", values[0], choices=values)


CLIENTS = whole(low=1)
SEED = whole(low=0, high=2**32 - 1)  # what every generator in use here takes
TEST_FRACTION = real(low=0, high=1)
SPLIT = choice("shuffled", "in_order")
EXAMPLES = whole(low=0)  # 0 is all


def check(owner: str, limits: dict[str, Hyper], values: dict[str, Any]) -> None:
    """Raises `InvalidInput` for the first value outside its limits, as `owner(name=...)`; names without limits pass."""
    for name, value in values.items():
        if name in limits and not limits[name].allows(value):
            raise InvalidInput.of(f"{owner}({name}=...)", value, limits[name].allowed)


def checked(**limits: Hyper) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function whose arguments are checked against `limits` at every call.

    >>> @checked(clients=whole(low=1))
    ... def deal(clients): return clients
    >>> deal(0)
    Traceback (most recent call last):
        ...
    fedax.core.errors.InvalidInput: deal(clients=...): got 0; allowed: whole numbers in [1, infinity).
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            check(function.__name__, limits, signature.bind(*args, **kwargs).arguments)
            return function(*args, **kwargs)

        guarded.__dict__["limits"] = limits
        return guarded

    return decorate
