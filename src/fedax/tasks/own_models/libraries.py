"""Common parts for models of other libraries: their options, and imports on demand."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from fedax.core import FedaxError
from fedax.core.bound_model import Policy
from fedax.core.directions import Mode
from fedax.tasks.own_models.outputs import Inputs
from fedax.utils.leaf_names import Which


class Options(TypedDict, total=False):
    """Keyword arguments of `from_flax`, `from_haiku` and `from_equinox`."""

    inputs: Inputs
    scores: Mapping[str, Callable[..., Any]] | None
    test: Any
    validation: Any
    client: str | None
    holdout: Any
    frozen: Which | None
    state_policy: Policy
    l2: float
    name: str | None
    modes: Mapping[str, Mode] | None
    predict: Callable[..., Any] | None


def import_library(package: str, maker: str, pip: str = "") -> Any:
    """Imports a package that only some users have.

    Raises:
        FedaxError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise FedaxError(
            f"{maker} needs the package {package!r} ({error}). Run pip install {pip or package}."
        ) from error
