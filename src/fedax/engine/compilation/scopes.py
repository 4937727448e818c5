"""The parts of a round, as profiles name them. Compiled operations carry the names of the parts that they were traced in."""

import re
from contextlib import AbstractContextManager

import jax

_NAME = re.compile(r"fedax\.(\w+)")
_WORK = re.compile(r"fedax\.work\.(\w+)")


def part(name: str) -> AbstractContextManager[object]:
    """Operations traced in it belong to that part."""
    return jax.named_scope(f"fedax.{name}")


def part_of(operation: str) -> str | None:
    """The innermost part in the name that a compiler keeps of an operation's origin, after the phase whose work it belongs to.

    >>> part_of("jit(advance)/while/body/fedax.work.train/transpose(jvp(fedax.gradients))/dot_general")
    'train: gradients'
    >>> part_of("jit(advance)/while/body/fedax.work.train/add"), part_of("jit(advance)/while/body/fedax.cohort/sort")
    ('train: steps', 'cohort')
    """
    names, works = _NAME.findall(operation), _WORK.findall(operation)
    if not works:
        return names[-1] if names else None
    return f"{works[-1]}: {'steps' if names[-1] == 'work' else names[-1]}"
