"""The methods, one mathematical idea per file. A module joins by existing: it is discovered, listed
and held to the laws.
"""

import functools
import importlib
import inspect
import pkgutil
from typing import Any

from fedax.core import Algorithm
from fedax.core import UnknownName as UnknownName
from fedax.core.hyper import construct, declared, is_concrete
from fedax.core.solver import SGD
from fedax.utils.plugins import find


@functools.cache
def algorithm_classes() -> dict[str, type[Algorithm[Any]]]:
    """Returns all algorithm classes by lower-case name, in alphabetical order.

    >>> algorithm_classes()["fedavg"].__name__
    'FedAvg'
    """
    found: dict[str, type[Algorithm[Any]]] = {}
    for info in pkgutil.walk_packages(__path__, f"{__name__}."):
        module = importlib.import_module(info.name)
        for name, member in inspect.getmembers(module, inspect.isclass):
            if (
                issubclass(member, Algorithm)
                # defined here, not imported; bases that methods share have no citation
                and member.__module__ == module.__name__
                and "citation" in vars(member)
            ):
                found[name.lower()] = member
    return dict(sorted(found.items()))


def algorithm_class(name: str) -> type[Algorithm[Any]]:
    """Returns the class of a built-in algorithm by its name, or that of your own:
    `path/to/file.py:Name`, `package.module:Name`.

    Raises:
        UnknownName: no such algorithm; the message holds the nearest name.
        InvalidInput: a file or a module that cannot be loaded, or something else than a class of an
            algorithm.
    """
    kinds = algorithm_classes()
    plain = name.lower() if name.lower() in kinds else name
    allowed = "a class derived from fedax.Algorithm, with `round`"
    return find("algorithm", plain, kinds, allowed, lambda value: is_concrete(value, Algorithm))


def make_algorithm(name: str, **hyperparameters: Any) -> Algorithm[Any]:
    """Makes an algorithm by name, as experiment files and the command line make it; see
    `algorithm_class`.

    >>> make_algorithm("fedprox", mu=0.5).mu
    0.5

    Raises:
        UnknownName: no such algorithm or hyperparameter; the message holds the nearest name.
        InvalidInput: a hyperparameter out of its range.
    """
    kind = algorithm_class(name)
    hint = ""
    # options of SGD written among those of the method: say where they belong
    for key in hyperparameters.keys() & declared(SGD).keys() - declared(kind).keys():
        hint = (
            f"{key} belongs to the solver. In a file write it in [solver], in [[algorithm]]"
            f" as solver = {{{key} = ...}}, or in [grid] as solver.{key} = [...]."
        )
    return construct(f"hyperparameter of {kind.__name__}", kind, hyperparameters, hint)


def __getattr__(name: str) -> type[Algorithm[Any]]:
    kind = algorithm_classes().get(name.lower())
    if kind is not None and kind.__name__ == name:
        return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
