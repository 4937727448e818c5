"""The type checker of the tests: beartype, with whole numbers accepted for real ones as PEP 484
says."""

import inspect
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Checks the types of fedax, which has to be imported afterwards."""
    jaxtyping.jaxtyped = (
        # the hook's own asks twice at every call, of functions without arrays too: a sixth of the
        # suite
        _typed
    )
    jaxtyping.install_import_hook("fedax", "beartype.beartype")


def _typed(*, typechecker: Any) -> Any:
    def decorate(target: Any) -> Any:
        if isinstance(target, type):
            return _jaxtyped(target, typechecker=_checked)
        if isinstance(target, classmethod | staticmethod):
            return type(target)(decorate(target.__func__))
        if not inspect.isfunction(target) or "<locals>" in target.__qualname__:
            # functions within functions are made anew at every call, and as often checked
            return target
        if target.__module__.startswith("fedax.cli.") and all(
            isinstance(annotation, str) for annotation in target.__annotations__.values()
        ):
            # commands import their types only for static checkers, so that help appears without JAX
            return target
        checked = _checked(target)
        return (
            _jaxtyped(checked, typechecker=None)
            if any(map(_has_shape, target.__annotations__.values()))
            else checked
        )

    return decorate


def _has_shape(annotation: Any) -> bool:
    """Whether dimensions by name may have to agree with others."""
    shaped = isinstance(annotation, str) or getattr(annotation, "__module__", "").startswith(
        "jaxtyping"
    )
    return shaped or any(map(_has_shape, get_args(annotation)))
