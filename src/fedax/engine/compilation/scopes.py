"""Profiler scopes: names for the parts of a round, in the metadata of compiled operations."""

import re
from contextlib import AbstractContextManager

import jax

_NAME = re.compile(r"fedax\.(\w+)")
_WORK = re.compile(r"fedax\.work\.(\w+)")


def profiler_scope(name: str) -> AbstractContextManager[object]:
    """Returns a context in which traced operations belong to the scope `name`."""
    return jax.named_scope(f"fedax.{name}")


def innermost_scope(operation: str) -> str | None:
    """Returns the innermost scope in an operation's origin, after the phase of its client work.

    >>> innermost_scope(
    ...     "jit(advance)/while/body/fedax.work.train/transpose(jvp(fedax.gradients))/dot_general"
    ... )
    'train: gradients'
    >>> innermost_scope("jit(advance)/while/body/fedax.work.train/add")
    'train: steps'
    >>> innermost_scope("jit(advance)/while/body/fedax.cohort/sort")
    'cohort'
    """
    names, works = _NAME.findall(operation), _WORK.findall(operation)
    if not works:
        return names[-1] if names else None
    return f"{works[-1]}: {'steps' if names[-1] == 'work' else names[-1]}"
