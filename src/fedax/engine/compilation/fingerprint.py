"""Fingerprint of a run: all that its results depend on, as plain values to store and compare."""

import dataclasses
import functools
import hashlib
import re
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from fedax.core.algorithm import Algorithm
from fedax.core.hyper import is_new
from fedax.core.task import Task
from fedax.errors import InvalidInput
from fedax.examples.memmap import blocks
from fedax.utils.layout import Layout

_PACKAGES = ("fedax", "jax", "jaxlib", "numpy", "optax", "equinox")
_SHOWN = 16
"""Arrays of up to this many entries are kept as they are, larger ones as a hash."""


def run_fingerprint(
    algorithms: Sequence[Algorithm[Any]],
    task: Task,
    starts: Sequence[Any],
    seeds: Sequence[int],
    rounds: Sequence[Sequence[Any]] = (),
    **settings: Any,
) -> dict[str, Any]:
    """Returns everything that the results of a run depend on.

    Records such as algorithms, solvers and graphs count with all their fields; losses, scores and
    Optax optimizers by the program they trace to, with derivatives; methods, solvers, sampling
    and observers by the traced round and metrics; functions that are not part of them, which work
    on the host, by their names and what they hold; data, frozen leaves and starting points by a
    hash.

    Args:
        algorithms: of the run.
        task: of the run.
        starts: the starting points, pytrees, one for each seed.
        seeds: of the run.
        rounds: for each algorithm the jaxprs of a round and of its metrics.
        settings: solver, schedule and whatever else counts, by name.

    Raises:
        InvalidInput: a value of which it cannot be told whether another one is the same.
    """
    params = starts[0]
    describe = Fingerprinter((params, Layout.of(params).ravel(params)))
    sets = {"train": task.train, "test": task.test, "central": task.central}
    sets |= {} if task.validation is None else {"validation": task.validation}
    sets |= {} if task.unseen is None else {"unseen": (task.unseen.train, task.unseen.test)}
    values = {
        # first: other settings of JAX change what follows, and a message names the first difference
        "random": random_settings(),
        "algorithms": list(algorithms),
        "seed": seeds[0] if len(seeds) == 1 else list(seeds),
        "task": {
            "name": task.name,
            "l2": task.l2,
            "clients": task.train.clients,
            # beside arrays, modules hold functions and settings, which programs depend on
            "frozen": hash_arrays(eqx.filter(task.frozen, eqx.is_array_like)),
            **_state_of(task),
        },
        "data": {name: hash_arrays(data) for name, data in sets.items()},
        "start": hash_arrays(starts),
        "versions": {name: version(name) for name in _PACKAGES},
        **settings,
    }
    return {name: describe(value, name) for name, value in values.items()} | {
        "programs": _hash_programs(task, params),
        "round_programs": [[hash_jaxpr(program) for program in programs] for programs in rounds],
    }


def _state_of(task: Task) -> dict[str, Any]:
    """Returns the initial state of a stateful model, and the policy by which it is combined."""
    return (
        {}
        if task.state is None
        else {"state": hash_arrays(task.state), "state_policy": task.state_policy}
    )


def random_settings() -> dict[str, Any]:
    """Returns JAX's settings that affect random numbers and rounding."""
    names = (
        "default_prng_impl",
        "threefry_partitionable",
        "enable_x64",
        "default_matmul_precision",
    )
    return {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}


def first_difference(current: Any, stored: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Returns the first field in which two fingerprints differ, with both values.

    Returns None if they are equal.

    >>> first_difference({"a": [1, 2]}, {"a": [1, 3]})
    ('a[1]', 2, 3)
    >>> first_difference({"a": 1}, {"a": 1, "b": 2})
    ('b', None, 2)
    """
    if isinstance(current, dict) and isinstance(stored, dict):
        names = [*current, *(name for name in stored if name not in current)]
        inner = [
            (f"{path}.{name}".lstrip("."), current.get(name), stored.get(name)) for name in names
        ]
    elif isinstance(current, list) and isinstance(stored, list) and len(current) == len(stored):
        inner = [
            (f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(current, stored, strict=True))
        ]
    else:
        return None if current == stored else (path, current, stored)
    return next(
        (difference for name, a, b in inner if (difference := first_difference(a, b, name))), None
    )


def hash_arrays(tree: Any) -> str:
    """Returns a hash of a pytree's arrays and structure."""
    leaves, structure = jax.tree.flatten(tree)
    total = hashlib.sha256(_strip_addresses(str(structure)).encode())
    for leaf in leaves:
        array = leaf if isinstance(leaf, np.memmap) else np.asarray(leaf)
        total.update(f"{array.dtype}{array.shape}".encode())
        for block in blocks(array):
            total.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
    return total.hexdigest()[:16]


def hash_program(function: Callable[..., Any], *arguments: Any) -> str:
    """Returns a hash of the jaxpr that a function traces to, and of its constants."""
    with jax.numpy_dtype_promotion("standard"):  # independent of the caller's setting
        return hash_jaxpr(jax.make_jaxpr(function)(*arguments))


def hash_jaxpr(closed: Any) -> str:
    """Returns a hash of a closed jaxpr and of its constants."""
    total = hashlib.sha256(_strip_addresses(str(closed)).encode())
    for constant in _collect_constants(closed):
        total.update(hash_arrays(constant).encode())
    return total.hexdigest()[:16]


def _collect_constants(closed: Any) -> list[Any]:
    """Returns the constants of a jaxpr and of the jaxprs within it."""
    is_program = lambda node: hasattr(node, "jaxpr") and hasattr(node, "consts")  # noqa: E731
    constants = list(closed.consts)
    for equation in closed.jaxpr.eqns:
        for leaf in jax.tree.leaves(equation.params, is_leaf=is_program):
            constants += _collect_constants(leaf) if is_program(leaf) else []
    return [
        jax.random.key_data(c) if jnp.issubdtype(c.dtype, jax.dtypes.prng_key) else c
        for c in constants
        # what a program takes from the one around it stands there
        if hasattr(c, "dtype") and not isinstance(c, Tracer)
    ]


def _hash_programs(task: Task, params: Any) -> dict[str, Any]:
    """Returns hashes of the programs of loss and gradient, with and without a key, and of
    scores.
    """
    # three examples: no natural size of anything, so that no other axis is mistaken for the batch
    types = {k: jax.dtypes.canonicalize_dtype(v.dtype) for k, v in task.train.arrays.items()}
    batch = {
        k: jax.ShapeDtypeStruct((3, *v.shape[1:]), types[k]) for k, v in task.train.arrays.items()
    }
    functions = dict(task.functions)

    def value_and_gradient(key: Any) -> Callable[..., Any]:
        return jax.value_and_grad(lambda params, batch: functions["loss"](params, batch, key).sum())

    losses = {
        "loss": hash_program(value_and_gradient(None), params, batch),
        "loss in training": hash_program(value_and_gradient(jax.random.key(0)), params, batch),
    }
    scores = {name: score for name, score in functions.items() if name != "loss"}
    return losses | {
        name: hash_program(lambda p, b, f=score: f(p, b, None), params, batch)
        for name, score in scores.items()
    }


class Fingerprinter:
    """Converts values to plain numbers, text, lists and dictionaries, equal for equal values.

    Args:
        probes: models on which optimizers are traced.
    """

    def __init__(self, probes: Sequence[Any]) -> None:
        self.probes = probes

    def __call__(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        # JSON has no NaN and no infinity
        if isinstance(value, float):
            return value if np.isfinite(value) else str(value)
        if isinstance(value, np.generic | np.ndarray | jax.Array):
            small = np.size(value) <= _SHOWN and not jnp.issubdtype(
                value.dtype, jax.dtypes.prng_key
            )
            return [str(value.dtype), np.asarray(value).tolist()] if small else hash_arrays(value)
        if isinstance(value, optax.GradientTransformation):
            return {"optimizer": self._hash_optimizer(value, path)}
        if isinstance(value, Mapping):
            return {str(key): self(inner, f"{path}.{key}") for key, inner in value.items()}
        if isinstance(value, tuple | list):
            return [self(inner, f"{path}[{i}]") for i, inner in enumerate(value)]
        if isinstance(value, set | frozenset):
            return sorted(str(self(inner, path)) for inner in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            contents = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
            fields = {
                field.name: content for field, content in contents if not is_new(field, content)
            }
            inner = {name: self(inner, f"{path}.{name}") for name, inner in fields.items()}
            return {"kind": _name_class(type(value))} | inner
        if callable(value):
            return self._describe_function(value, path)
        allowed = (
            "numbers, text, arrays, records (dataclasses, Equinox modules) and functions of "
            "them, which can be compared"
        )
        raise InvalidInput.found(
            f"run(checkpoint=...), {path}", f"a value of {type(value).__name__}", allowed
        )

    def _hash_optimizer(self, value: optax.GradientTransformation, path: str) -> str:
        for probe in self.probes:
            try:
                state = jax.eval_shape(value.init, probe)
                return hash_program(value.init, probe) + hash_program(
                    value.update, probe, state, probe
                )
            except Exception as error:
                failed = error
        raise InvalidInput.found(
            f"run(checkpoint=...), {path}",
            "an optimizer that fails",
            "Optax optimizers",
            str(failed),
        )

    def _describe_function(self, value: Any, path: str) -> Any:
        if isinstance(value, functools.partial):
            return [self(value.func, path), self(value.args, path), self(value.keywords, path)]
        if isinstance(value, types.MethodType):
            return [self(value.__self__, path), value.__func__.__qualname__]
        value = getattr(value, "__wrapped__", value)
        if isinstance(value, type):
            return _name_class(value)
        if not isinstance(value, types.FunctionType):
            name = getattr(value, "__qualname__", getattr(value, "__name__", type(value)))
            return f"{getattr(value, '__module__', '')}.{name}"
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        captured = [
            self(inner, f"{path}, held by {value.__qualname__}")
            for inner in cells
            if inner is not value
        ]
        return [
            value.__qualname__,
            captured,
            self(value.__defaults__, path),
        ]


def _name_class(cls: type) -> str:
    # what its methods do stands in the traced programs
    return f"{cls.__module__}.{cls.__qualname__}"


def _strip_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "", text)
