"""Common parts for models of other libraries: their options, and imports on demand."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from fedax.core import FedaxError, InvalidInput
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
    central: Any
    frozen: Which | None
    state_policy: Policy
    l2: float
    name: str | None
    modes: Mapping[str, Mode] | None
    predict: Callable[..., Any] | None


_LIBRARIES = {
    "flax.linen": ("a Flax module", "from_flax"),
    "flax.nnx": ("a Flax module", "from_flax"),
    "haiku": ("a Haiku model", "from_haiku"),
    "equinox": ("an Equinox module", "from_equinox"),
    "torch.nn": ("a PyTorch module", "from_torch"),
}
"""By the Python module in which a library defines its base classes: what its models are called in
messages, and the function for them."""


def refuse_other_library(maker: str, module: Any) -> None:
    """Refuses a model, or the class of one, that is of another library than a function takes.

    Args:
        maker: the function, for messages.
        module: what it was given; anything that is of no library passes.

    Raises:
        InvalidInput: it names the function for that library.
    """
    kind = module if isinstance(module, type) else type(module)
    for base in kind.__mro__:
        for package, (noun, right_maker) in _LIBRARIES.items():
            if not f"{base.__module__}.".startswith(f"{package}."):
                continue
            if right_maker == maker:
                return
            raise InvalidInput.found(
                f"{maker}(module=...)",
                f"{noun}, {kind.__name__}",
                next(noun for noun, its_maker in _LIBRARIES.values() if its_maker == maker),
                f"Write fedax.tasks.{right_maker}(...).",
            )


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
