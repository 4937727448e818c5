"""The options of functions that make data or tasks, for experiment files and the command line."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedax.core import InvalidInput, UnknownName
from fedax.data.partition import partition_options


def options_of(
    name: str, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns every option of a function with its default.

    Among them those of the partition that is given, or of the default one.

    Options without a default have `inspect.Parameter.empty`.

    >>> from fedax.data import digits
    >>> options_of("digits", digits, {"partition": "dirichlet"})["alpha"]
    0.5

    Raises:
        UnknownName: no such partition.
        InvalidInput: a partition that is not a name.
    """
    parameters = inspect.signature(function).parameters
    options = {key: p.default for key, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    if "partition" not in options:
        return options
    partition = arguments.get("partition", options["partition"])
    if partition is None:  # one client for each value of a column
        return options | {"minimum": 1}
    if not isinstance(partition, str):
        raise InvalidInput.of(f"{name}(partition=...)", partition, "the name of a partition")
    return options | partition_options(partition)


def check_options(
    kind: str, name: str, defaults: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Refuses unknown options, and missing ones without a default.

    Raises `UnknownName` or `InvalidInput`.
    """
    for key in options:
        if key not in defaults:
            raise UnknownName.among(f"option of {kind} {name!r}", key, defaults)
    for key, default in defaults.items():
        if default is inspect.Parameter.empty and key not in options:
            raise InvalidInput.found(
                f"{name}({key}=...)", "nothing", f"a value: {kind} {name!r} needs it"
            )


def check_partition_options(
    name: str, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> None:
    """Refuses options that neither the function nor its partition has.

    The partition is the given one or the default.

    Args:
        name: of the function, for the message.
        function: passes `**options` on to a partition.
        arguments: the bound arguments of a call.

    Raises:
        UnknownName: such an option; the message lists those of the function and of the partition.
    """
    if "partition" in inspect.signature(function).parameters:
        # those of the function and of its partition
        options = options_of(name, function, arguments)
        for key in arguments.get("options", {}):
            if key not in options:
                raise UnknownName.among(f"argument of {name}", key, options)
