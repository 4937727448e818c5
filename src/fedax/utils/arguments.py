"""Arguments of constructors and functions, checked by name before the call."""

import copyreg
import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedax.errors import InvalidInput, UnknownName

Owner = TypeVar("Owner", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])
ON_DEVICES = "JAX chooses the device: see `fedax doctor` and JAX_PLATFORMS."
_HINTS = {("SGD", "lr"): "Write learning_rate=.", ("from_torch", "device"): ON_DEVICES}
"""What to write instead of arguments that other libraries have, by function and argument."""


def unknown_argument(function: str, argument: str, names: Iterable[str]) -> UnknownName:
    """Returns the error about an argument that a function does not take."""
    hint = _HINTS.get((function, argument), "")
    return UnknownName.among(f"argument of {function}", argument, names, hint)


def check_call(
    name: str, function: Callable[..., Any], values: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Refuses arguments that a call does not take.

    Args:
        name: of the function or class, for the message.
        function: whose signature counts.
        values, options: the positional arguments and those by name.

    Raises:
        UnknownName: a name that the signature does not have; the message holds the nearest one.
        InvalidInput: too many positional arguments, one given twice, or one that is missing.
    """
    _check(name, inspect.signature(function), values, options)


def _check(
    name: str, signature: inspect.Signature, values: Sequence[Any], options: Mapping[str, Any]
) -> None:
    try:
        signature.bind(*values, **options)
        return
    except TypeError as failure:
        error = failure
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name in ("self", "cls") and "." in name:
        parameters, values = parameters[1:], values[1:]
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if unknown := [key for key in options if key not in names]:
        raise unknown_argument(name, unknown[0], names or ["(none)"]) from None
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(values) > len(positional):
        by_name = ", ".join(f"{key}=..." for key in names)
        allowed = f"arguments by name, {name}({by_name})" if names else "no arguments"
        raise InvalidInput.of(f"{name}(...)", values[len(positional)], allowed) from None
    raise InvalidInput.because(f"{name}(...)", str(error)) from None


def checked_arguments(owner: Owner) -> Owner:
    """Decorates a class so that wrong arguments raise `InvalidInput`.

    Misspelled, superfluous and missing arguments of it and its subclasses are refused.
    """
    make: Any = owner.__new__

    # a run makes a dozen records; building a signature takes four times as long as binding it
    @functools.lru_cache(maxsize=512)
    def signature(cls: Any) -> inspect.Signature:
        return inspect.signature(constructor(cls))

    def constructor(cls: Any) -> Callable[..., Any]:
        if cls.__init__ is not object.__init__:
            return functools.partial(cls.__init__, cls)
        # named tuples are made by `__new__`
        return cls if make is object.__new__ else functools.partial(make, cls)

    def new(cls: Any, *values: Any, **options: Any) -> Any:
        _check(cls.__name__, signature(cls), values, options)
        return make(cls) if make is object.__new__ else make(cls, *values, **options)

    owner.__new__ = staticmethod(new)
    if tuple not in owner.__mro__:  # a tuple is made of its values again
        setattr(owner, "__reduce_ex__", _reduce)  # noqa: B010, as type checkers know another signature
    if type(owner) in (type, ABCMeta):  # other metaclasses define a signature
        owner.__signature__ = _SignatureOf(constructor)
    return owner


def _reduce(self: Any, protocol: Any) -> Any:
    """Describes an object for `pickle` and `copy`, which make it without arguments and then fill
    it.
    """
    reduced = object.__reduce_ex__(self, protocol)
    make: Any = getattr(copyreg, "__newobj__")  # noqa: B009, which type checkers do not know
    if isinstance(reduced, tuple) and reduced[:2] == (make, (type(self),)):
        return (_unfilled, *reduced[1:])
    return reduced


def _unfilled(cls: type) -> Any:
    return object.__new__(cls)


class _SignatureOf:
    """Signature of a class and of its subclasses; `inspect` would take it from `__new__`."""

    def __init__(self, constructor: Callable[[Any], Callable[..., Any]]) -> None:
        self.constructor = constructor

    def __get__(self, _: Any, owner: Any) -> inspect.Signature:
        target = self.constructor(owner)
        return inspect.Signature() if target is owner else inspect.signature(target)


def checked_call(function: Function) -> Function:
    """Decorates a function or method so that wrong arguments raise `InvalidInput`.

    Misspelled, superfluous and missing arguments are refused.

    The signature is looked at only after a call has failed, so that checked functions cost nothing
    where they are called often.
    """
    name = function.__qualname__ if "<locals>" not in function.__qualname__ else function.__name__

    @functools.wraps(function)
    def call(*values: Any, **options: Any) -> Any:
        try:
            return function(*values, **options)
        except TypeError:
            check_call(name, function, values, options)
            raise

    return call  # type: ignore[return-value]


class Moved:
    """An argument that its function takes out, so that no calling frame keeps its arrays alive."""

    def __init__(self, value: Any) -> None:
        self._values = [value]

    def take(self) -> Any:
        """Returns the argument; works once."""
        return self._values.pop()


def checked_call_moving(argument: str) -> Callable[[Function], Function]:
    """Decorates like `checked_call`, and passes one of the arguments on as `Moved`.

    A wrapper's tuple of arguments would keep a large model alive while the function copies it.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*values: Any, **options: Any) -> Any:
            check_call(function.__name__, function, values, options)
            bound = signature.bind(*values, **options)
            bound.arguments[argument] = Moved(bound.arguments[argument])
            values, options = bound.args, bound.kwargs
            return function(*values, **options)

        return call  # type: ignore[return-value]

    return decorate
