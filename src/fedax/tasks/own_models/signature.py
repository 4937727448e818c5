"""The arguments of a user's per-example function, and the leaves that a user names."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from jaxtyping import PyTree

from fedax.core import InvalidInput
from fedax.utils.leaf_names import Which, chosen

_KEYS = ("key", "rng", "rng_key")
_MORE = ("mask", "state", "training")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def choose_leaves(tree: PyTree, which: Which, field: str) -> list[bool]:
    """Returns for each leaf whether it is selected, see `fedax.utils.leaf_names.chosen`.

    Raises:
        InvalidInput: a name that no leaf has, or anything but names or a predicate.
    """
    if isinstance(which, str) or callable(which):
        return chosen(tree, which, field)
    names = list(which) if isinstance(which, Iterable) else [which]
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput.of(field, which, "names of leaves, or a predicate of name and leaf")
    return chosen(tree, names, field)


def call_with(maker: Callable[..., Any], name: str, value: Any) -> Any:
    """Calls a function or class with one argument: by its name where it has that, or else in the
    first place.

    >>> call_with(lambda *, key: key, "key", 3), call_with(lambda seed: seed, "key", 3)
    (3, 3)
    """
    return maker(**{name: value}) if _takes_by_name(maker, name) else maker(value)


def _takes_by_name(maker: Callable[..., Any], name: str) -> bool:
    """Returns whether a function or class has an argument of a name that is still to be given, and
    no other argument has to come before it.
    """
    function, args, bound = inspect.unwrap(maker), (), {}
    if isinstance(function, functools.partial):
        function, args, bound = inspect.unwrap(function.func), function.args, function.keywords
    # the signature of a class of Flax or Equinox is that of its metaclass
    if inspect.isclass(function):
        function, args = function.__init__, (None, *args)
    try:
        parameters = inspect.signature(functools.partial(function, *args, **bound)).parameters
    except (TypeError, ValueError):  # built-in functions do not say
        return False
    if name not in parameters or name in bound:
        return False
    required = [
        p.name
        for p in parameters.values()
        if p.kind in _POSITIONAL and p.default is inspect.Parameter.empty
    ]
    kind = parameters[name].kind
    return kind is inspect.Parameter.KEYWORD_ONLY or (
        kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and required in ([], [name])
    )


def read_signature(function: Callable[..., Any], field: str) -> tuple[str | bool, set[str]]:
    """Finds how a function of parameters and examples takes a random key, and what else it takes.

    The key is the third argument if that has no default and no other reserved name, or one that is
    called `key` or `rng`, then by keyword. Other arguments with a default are the function's own
    business.

    >>> read_signature(lambda params, examples, noise: None, "loss")
    (True, set())
    >>> read_signature(lambda params, examples, scale=2.0, *, key=None, mask=None: None, "loss")
    ('key', {'mask'})

    Raises:
        InvalidInput: fewer than two arguments, or more without a default than a function is given.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built-in functions do not say
        return False, set()
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters[:2]):
        return False, set()
    first, further = parameters[:2], parameters[2:]
    if len(first) < 2 or any(p.kind not in _POSITIONAL for p in first):
        raise InvalidInput.found(
            field,
            f"a function of {len(first)} positional arguments",
            "a function (params, examples)",
        )
    optional = {
        p.name
        for p in further
        if p.name in _MORE and p.kind is not inspect.Parameter.POSITIONAL_ONLY
    }
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        p
        for p in further
        if p.default is inspect.Parameter.empty
        and p.name not in optional
        and p.kind not in variadic
    ]
    key: str | bool = next(
        (
            p.name
            for p in further
            if p.name in _KEYS and p.kind is not inspect.Parameter.POSITIONAL_ONLY
        ),
        False,
    )
    required = [p for p in required if p.name != key]
    # without a name for it, the key is an argument right behind `examples` that has to be given
    if not key and required and required[0] is further[0] and required[0].kind in _POSITIONAL:
        key, required = True, required[1:]
    if required:
        names = ", ".join(repr(p.name) for p in required)
        allowed = (
            "beside params and examples the arguments key, mask, state and training, and "
            "others with a default"
        )
        raise InvalidInput.found(field, f"a function with the further arguments {names}", allowed)
    return key, optional
