"""The arguments of a user's per-example function, and the leaves that a user names."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from jaxtyping import PyTree

from fedax.core import InvalidInput
from fedax.utils.leaf_names import Which, chosen

_KEYS = ("key", "rng", "rng_key")
_MORE = ("state", "training")
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


def read_signature(function: Callable[..., Any], field: str) -> tuple[str | bool, set[str]]:
    """Finds how a function of parameters and examples takes a random key, and what else it takes.

    The key is the third argument if that has no default and no other reserved name, or one that is
    called `key` or `rng`, then by keyword. Other arguments with a default are the function's own
    business.

    >>> read_signature(lambda params, examples, noise: None, "loss")
    (True, set())
    >>> read_signature(lambda params, examples, scale=2.0, *, key=None, state=None: None, "loss")
    ('key', {'state'})

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
            "beside params and examples the arguments key, state and training, and "
            "others with a default"
        )
        raise InvalidInput.found(field, f"a function with the further arguments {names}", allowed)
    return key, optional
