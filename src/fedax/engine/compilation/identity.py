"""Identity of a run: what its results depend on, as texts and hashes by name."""

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

from fedax.core.task import Task
from fedax.errors import InvalidInput
from fedax.examples.memmap import blocks
from fedax.utils.layout import Layout

_PACKAGES = ("fedax", "jax", "jaxlib", "numpy", "optax", "equinox")
_SHOWN = 16
"""Arrays of up to this many entries are described by their numbers, larger ones by a hash."""
_BLOCKS = 16
"""Blocks of a large array that a sampled hash reads."""
_BLOCK_BYTES = 1 << 16

Identity = dict[str, Any]
"""Plain values, texts and hashes by dotted name, such as `schedule.cohort`."""


def random_settings() -> Identity:
    """Returns JAX's settings that affect random numbers and rounding."""
    names = (
        "jax_default_prng_impl",
        "jax_threefry_partitionable",
        "jax_enable_x64",
        "jax_default_matmul_precision",
    )
    return {name: getattr(jax.config, name) for name in names}


def task_identity(task: Task, layout: Layout, whole: bool) -> Identity:
    """Returns what results depend on through the task.

    Args:
        task: of the run.
        layout: of its trained parameters.
        whole: whether all examples are hashed, and the programs of loss and scores. Otherwise
            large arrays are sampled: hashing 100 MB would take as long as a short run.
    """
    facts: Identity = {
        "model": strip_addresses(f"{layout.treedef} {layout.shapes} {layout.dtype}"),
        "task.name": task.name,
        "task.clients": task.train.clients,
        "task.examples": task.train.total,
        "task.l2": str(task.l2),
        "task.state": None if task.state is None else hash_arrays(task.state),
        "task.state_policy": task.state_policy,
    }
    # modules hold functions and settings among their arrays, which programs depend on
    data = {"train": task.train, "frozen": eqx.filter(task.frozen, eqx.is_array_like)}
    if whole:
        data |= {"test": task.test, "validation": task.validation, "central": task.central}
        data["unseen"] = task.unseen and (task.unseen.train, task.unseen.test)
        facts |= _task_programs(task, layout)
    for name, value in data.items():
        facts[f"data.{name}"] = hash_arrays(value, sampled=not whole)
    return facts


@functools.cache
def package_versions() -> Identity:
    """Returns the versions of the packages that results depend on."""
    return {f"versions.{name}": version(name) for name in _PACKAGES}


def merge(identities: Sequence[Identity]) -> Identity:
    """Returns the identity of several runs together; what differs between them, by run.

    >>> merge([{"seed": 0, "rounds": 2}, {"seed": 1, "rounds": 2}])
    {'rounds': 2, 'run 0, seed': 0, 'run 1, seed': 1}
    """
    first, *others = identities
    shared = {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }
    return shared | {
        f"run {i}, {name}": value
        for i, identity in enumerate(identities)
        for name, value in identity.items()
        if name not in shared
    }


def check_same(current: Identity, stored: Identity, field: str) -> None:
    """Refuses to continue what another run has stored.

    Args:
        current: the identity of the run that continues.
        stored: that of the run before.
        field: which is refused, for the message.

    Raises:
        InvalidInput: they differ; the message lists the names of what differs.
    """
    names = [name for name in {**stored, **current} if current.get(name) != stored.get(name)]
    if names:
        raise InvalidInput.because(field, f"another run, which differs in {', '.join(names)}")


def describe(value: Any, name: str) -> Identity:
    """Returns a value as plain values and texts by name, equal for equal values.

    Records, lists and mappings have an entry for each of theirs. An optimizer counts by its
    program, a function by its name, an object of another class by its class.

    >>> describe({"rates": [0.1, 0.2]}, "a")
    {'a': '1 entries', 'a.rates': '2 entries', 'a.rates[0]': '0.1', 'a.rates[1]': '0.2'}
    """
    if value is None or isinstance(value, bool | int | str):
        return {name: value}
    if isinstance(value, float):
        return {name: str(value)}
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        is_short = np.size(value) <= _SHOWN and not _is_key(value)
        return {name: str(np.asarray(value).tolist()) if is_short else hash_arrays(value)}
    if isinstance(value, optax.GradientTransformation):
        return {name: _hash_optimizer(value)}
    text, entries = _entries(value)
    facts: Identity = {name: text}
    for suffix, entry in entries.items():
        facts |= describe(entry, name + suffix)
    return facts


def _entries(value: Any) -> tuple[str, dict[str, Any]]:
    """Returns a value in a word, and what it consists of by the ends of their names."""
    value = getattr(value, "__wrapped__", value)
    # what the methods of a class do stands in the traced programs
    owner = value if hasattr(value, "__qualname__") else type(value)
    text = f"{owner.__module__}.{owner.__qualname__}"
    if dataclasses.is_dataclass(value) and owner is not value:
        names = [field.name for field in dataclasses.fields(value)]
        return text, {f".{name}": getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return f"{len(value)} entries", {f".{key}": entry for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return f"{len(value)} entries", {f"[{i}]": entry for i, entry in enumerate(value)}
    if isinstance(value, functools.partial):
        return text, {".function": value.func, ".values": (value.args, value.keywords)}
    if isinstance(value, types.MethodType):
        return text, {".self": value.__self__}
    return text, {}


def hash_arrays(tree: Any, sampled: bool = False) -> str:
    """Returns a hash of a pytree's arrays and structure; `sampled`, of blocks of large arrays."""
    leaves, structure = jax.tree.flatten(tree)
    total = hashlib.sha256(strip_addresses(str(structure)).encode())
    for leaf in leaves:
        array = _sample_blocks(leaf) if sampled else _as_numpy(leaf)
        total.update(f"{array.dtype}{array.shape}".encode())
        for block in blocks(array):
            total.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
    return total.hexdigest()[:16]


def hash_program(function: Callable[..., Any], *arguments: Any) -> str:
    """Returns a hash of the jaxpr that a function traces to, and of its constants."""
    with jax.numpy_dtype_promotion("standard"):  # independent of the caller's setting
        return hash_jaxpr(jax.make_jaxpr(function)(*arguments))


def _hash_optimizer(optimizer: optax.GradientTransformation) -> str:
    vector = jax.ShapeDtypeStruct((3,), jnp.result_type(float))
    try:
        state = jax.eval_shape(optimizer.init, vector)
        update = hash_program(optimizer.update, vector, state, vector)
        return hash_program(optimizer.init, vector) + update
    except Exception:  # one that needs the leaves of a model, whose rounds are traced
        return "an optimizer of named leaves"


def hash_jaxpr(closed: Any) -> str:
    """Returns a hash of a closed jaxpr and of its constants."""
    total = hashlib.sha256(strip_addresses(str(closed)).encode())
    for constant in _collect_constants(closed):
        total.update(hash_arrays(constant).encode())
    return total.hexdigest()[:16]


def _collect_constants(closed: Any) -> list[Any]:
    """Returns the constants of a jaxpr and of the jaxprs within it."""
    is_program = lambda node: hasattr(node, "jaxpr") and hasattr(node, "consts")  # noqa: E731
    # what a program takes from the one around it stands there
    constants = [c for c in closed.consts if hasattr(c, "dtype") and not isinstance(c, Tracer)]
    for equation in closed.jaxpr.eqns:
        for leaf in jax.tree.leaves(equation.params, is_leaf=is_program):
            constants += _collect_constants(leaf) if is_program(leaf) else []
    return constants


def _task_programs(task: Task, layout: Layout) -> Identity:
    """Returns hashes of the programs of loss and gradient, with and without a key, and of
    scores.
    """
    # three examples: no natural size of anything, so that no other axis is mistaken for the batch
    batch = {
        name: jax.ShapeDtypeStruct((3, *a.shape[1:]), jax.dtypes.canonicalize_dtype(a.dtype))
        for name, a in task.train.arrays.items()
    }
    functions = dict(task.functions)
    loss = functions.pop("loss")

    def with_gradient(key: Any) -> Callable[..., Any]:
        return jax.value_and_grad(lambda params, batch: loss(params, batch, key).sum())

    programs = {name: lambda p, b, f=score: f(p, b, None) for name, score in functions.items()}
    programs |= {"loss": with_gradient(None), "loss in training": with_gradient(jax.random.key(0))}
    params = jax.eval_shape(layout.unravel, jax.ShapeDtypeStruct((layout.dim,), layout.dtype))
    return {
        f"programs.{name}": hash_program(program, params, batch)
        for name, program in programs.items()
    }


def _as_numpy(leaf: Any) -> np.ndarray:
    if isinstance(leaf, np.memmap):
        return leaf
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _sample_blocks(leaf: Any) -> np.ndarray:
    """Returns whole blocks of a large array, because reading scattered numbers of a file would
    read all of its pages.
    """
    # of data on the devices of other hosts only the type counts
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return np.zeros(0, leaf.dtype)
    array = _as_numpy(leaf)
    if array.nbytes <= _BLOCKS * _BLOCK_BYTES:
        return array
    flat = array.reshape(-1)
    length = max(_BLOCK_BYTES // array.itemsize, 1)
    starts = np.linspace(0, flat.size - length, _BLOCKS).astype(int)
    return np.concatenate([flat[start : start + length] for start in starts])


def strip_addresses(text: str) -> str:
    """Returns a text without the addresses of functions, which another process has elsewhere."""
    return re.sub(r"0x[0-9a-f]+", "", text)
