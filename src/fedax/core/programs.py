"""Compiled programs, which belong to a task and go with it."""

import warnings
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

MOST_PROGRAMS = 128
"""Programs that a process keeps: each takes about a hundred of the memory maps that it may have."""
_ARRAY = object()
"""Stands for an array among constants."""


class _Static(eqx.Module):
    """What a program returns beside arrays, as a part of its type."""

    value: PyTree = eqx.field(static=True)


_Constants: TypeAlias = tuple[tuple[Hashable, ...], Any]
_Program: TypeAlias = Callable[
    [list[Array | np.ndarray], list[Array | np.ndarray]], tuple[PyTree, _Static]
]


class ProgramOwner:
    """What compiled programs belong to, compared by identity; when it is dropped, so are they.

    JAX keeps what it compiled for a function as long as the function lives. Each program is
    therefore a function of its own, which has its static arguments from its closure. A copy of an
    owner, such as that of another process, is another owner.
    """

    def __init__(self) -> None:
        self._programs: dict[Hashable, _Program] = {}
        _OWNERS.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProgramOwner, ()

    def call(
        self,
        function: Callable[..., PyTree],
        *arguments: PyTree,
        donated: tuple[PyTree, ...] = (),
        **options: str | bool,
    ) -> PyTree:
        """Returns `function(*arguments, *donated)`, compiled.

        Arrays are traced, everything else is static: it is compared by its hash.

        Args:
            function: at the top of its module.
            arguments: pytrees.
            donated: the last arguments, whose arrays are overwritten.
            options: of the compiler.
        """
        inputs, constants = _partition(arguments)
        last_inputs, last_constants = _partition(donated)
        static = (constants, last_constants)
        key = (function, static, tuple(options.items()))
        program = self._programs.pop(key, None)
        if program is None:
            self._make_room()
            program = _compile(function, static, options)
        # the last one called comes last
        self._programs[key] = program
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            outputs, others = program(inputs, last_inputs)
        return eqx.combine(outputs, others.value)

    def _make_room(self) -> None:
        """Drops the programs of others, and the own one that was called longest ago, if there are
        too many.
        """
        if sum(len(owner._programs) for owner in _OWNERS) < MOST_PROGRAMS:
            return
        for owner in _OWNERS:
            if owner is not self:
                owner._programs.clear()
        if len(self._programs) >= MOST_PROGRAMS:
            self._programs.pop(next(iter(self._programs)))


_OWNERS = weakref.WeakSet[ProgramOwner]()

SHARED = ProgramOwner()
"""Owner of the programs of tasks of equal functions that read nothing but their arguments."""


def _partition(tree: PyTree) -> tuple[list[Array | np.ndarray], _Constants]:
    """Returns the arrays of a pytree, and all else of it, to compare."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [leaf for leaf in leaves if eqx.is_array(leaf)]
    others = tuple(_ARRAY if eqx.is_array(leaf) else leaf for leaf in leaves)
    return arrays, (others, structure)


def _combine(arrays: list[Array | np.ndarray], constants: _Constants) -> PyTree:
    others, structure = constants
    remaining = iter(arrays)
    leaves = [next(remaining) if leaf is _ARRAY else leaf for leaf in others]
    return jax.tree.unflatten(structure, leaves)


def _compile(
    function: Callable[..., PyTree],
    static: tuple[_Constants, _Constants],
    options: dict[str, str | bool],
) -> _Program:
    # the type of the inputs must not hold the owner, which would hold itself
    def program(
        inputs: list[Array | np.ndarray], last_inputs: list[Array | np.ndarray]
    ) -> tuple[PyTree, _Static]:
        arguments, donated = map(_combine, (inputs, last_inputs), static)
        outputs, others = eqx.partition(function(*arguments, *donated), eqx.is_array)
        return outputs, _Static(others)

    program.__name__ = function.__name__
    return jax.jit(program, donate_argnums=1, compiler_options=options or None)
