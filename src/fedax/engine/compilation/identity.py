"""Identity of a run: what its results depend on, as texts and hashes by name."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
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

version = functools.cache(metadata.version)
_PACKAGES = ("fedax", "jax", "jaxlib", "numpy", "optax", "equinox")
_SHOWN = 16
"""Arrays of up to this many entries are described by their numbers, larger ones by a hash."""
_BLOCKS = 16
"""Blocks of a large array that a sampled hash reads."""
_BLOCK_BYTES = 1 << 16

Identity = dict[str, Any]
"""Plain values, texts and hashes by dotted name, such as `schedule.cohort`."""


def task_identity(task: Task, layout: Layout, whole: bool) -> Identity:
    """Returns what results depend on through the task.

    Args:
        task: of the run.
        layout: of its trained parameters.
        whole: whether all numbers of the data are hashed. Otherwise large arrays are sampled:
            hashing 100 MB would take as long as a short run.
    """
    forms = jax.tree.map(lambda a: (str(a.dtype), a.shape[1:]), task.data.arrays_by_part)
    facts: Identity = {
        "model": strip_addresses(f"{layout.treedef} {layout.shapes} {layout.dtype}"),
        "task.name": task.name,
        "task.clients": task.train.clients,
        "task.examples": task.train.total,
        "task.l2": str(task.l2),
        "task.state": None if task.state is None else hash_arrays(task.state),
        "task.state_policy": task.state_policy,
        "task.arrays": str(forms),
    }
    data = {
        "train": task.train,
        "test": task.test,
        "validation": task.validation,
        "central": task.central,
        "unseen": task.unseen and (task.unseen.train, task.unseen.test),
        # modules hold functions and settings among their arrays, which programs depend on
        "frozen": eqx.filter(task.frozen, eqx.is_array_like),
    }
    for name, value in data.items():
        facts[f"data.{name}"] = hash_arrays(value, sampled=not whole)
    return facts


def environment() -> Identity:
    """Returns the versions of packages and the settings of JAX that results depend on."""
    versions = {f"versions.{name}": version(name) for name in _PACKAGES}
    return versions | random_settings()


def random_settings() -> Identity:
    """Returns JAX's settings that affect random numbers and rounding."""
    names = (
        "jax_default_prng_impl",
        "jax_threefry_partitionable",
        "jax_enable_x64",
        "jax_default_matmul_precision",
    )
    return {name: getattr(jax.config, name) for name in names}


def merge(identities: Sequence[Identity]) -> Identity:
    """Returns the identity of several runs together; what differs between them as a list.

    >>> merge([{"seed": 0, "rounds": 2}, {"seed": 1, "rounds": 2}])
    {'seed': [0, 1], 'rounds': 2}
    """
    names = dict.fromkeys(name for identity in identities for name in identity)
    columns = {name: [identity.get(name) for identity in identities] for name in names}
    return {
        name: column[0] if all(value == column[0] for value in column) else column
        for name, column in columns.items()
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
    """Returns a value as texts by name, equal for equal values.

    Records, lists and mappings have an entry for each of theirs. An optimizer counts by its
    program, anything else by its text without addresses.

    >>> describe({"rates": [0.1, 0.2]}, "a")
    {'a': 'dict of 1', 'a.rates': 'list of 2', 'a.rates[0]': '0.1', 'a.rates[1]': '0.2'}
    """
    if isinstance(value, optax.GradientTransformation):
        return {name: _hash_optimizer(value)}
    if isinstance(value, np.ndarray | jax.Array):
        is_short = value.size <= _SHOWN and not is_key(value)
        return {name: str(np.asarray(value).tolist()) if is_short else hash_arrays(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        entries = {f".{field.name}": getattr(value, field.name) for field in fields}
    elif isinstance(value, Mapping):
        entries = {f".{key}": entry for key, entry in value.items()}
    elif isinstance(value, tuple | list):
        entries = {f"[{i}]": entry for i, entry in enumerate(value)}
    else:
        # what a function does stands in the traced programs
        return {name: strip_addresses(repr(value))}
    facts: Identity = {name: f"{type(value).__qualname__} of {len(entries)}"}
    for suffix, entry in entries.items():
        facts |= describe(entry, name + suffix)
    return facts


def hash_arrays(tree: Any, sampled: bool = False) -> str:
    """Returns a hash of a pytree's arrays and structure; `sampled`, of blocks of large arrays."""
    leaves, structure = jax.tree.flatten(tree)
    total = hashlib.sha256(strip_addresses(str(structure)).encode())
    for leaf in leaves:
        array = _sample_blocks(leaf) if sampled else as_numpy(leaf)
        total.update(f"{array.dtype}{array.shape}".encode())
        for block in blocks(array):
            total.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
    return total.hexdigest()[:16]


def hash_program(function: Callable[..., Any], *arguments: Any) -> str:
    """Returns a hash of the jaxpr that a function traces to, and of its constants."""
    arrays, static = eqx.partition(arguments, eqx.is_array)

    def program(arrays: Any) -> Any:
        return eqx.filter(function(*eqx.combine(arrays, static)), eqx.is_array)

    with jax.numpy_dtype_promotion("standard"):  # independent of the caller's setting
        closed = jax.make_jaxpr(program)(arrays)
    total = hashlib.sha256(strip_addresses(str(closed)).encode())
    for constant in _collect_constants(closed):
        total.update(hash_arrays(constant).encode())
    return total.hexdigest()[:16]


def _collect_constants(closed: Any) -> list[Any]:
    """Returns the constants of a jaxpr and of the jaxprs within it, such as jitted functions."""
    is_program = lambda node: hasattr(node, "jaxpr") and hasattr(node, "consts")  # noqa: E731
    # what a program takes from the one around it stands there
    constants = [c for c in closed.consts if hasattr(c, "dtype") and not isinstance(c, Tracer)]
    for equation in closed.jaxpr.eqns:
        for leaf in jax.tree.leaves(equation.params, is_leaf=is_program):
            constants += _collect_constants(leaf) if is_program(leaf) else []
    return constants


def _hash_optimizer(optimizer: optax.GradientTransformation) -> str:
    vector = jnp.zeros(3)
    try:
        update = hash_program(optimizer.update, vector, optimizer.init(vector), vector)
        return hash_program(optimizer.init, vector) + update
    except Exception:  # one that needs the leaves of a model, whose rounds are traced
        return "an optimizer of named leaves"


def as_numpy(leaf: Any) -> np.ndarray:
    """Returns an array, or the data of JAX keys, as an array of NumPy."""
    # a memory-mapped file stays one
    return np.asanyarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def is_key(leaf: Any) -> bool:
    """Returns whether a leaf is an array of JAX keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _sample_blocks(leaf: Any) -> np.ndarray:
    """Returns whole blocks of a large array, because reading scattered numbers of a file would
    read all of its pages.
    """
    # of data on the devices of other hosts only the type counts
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return np.zeros(0, leaf.dtype)
    array = as_numpy(leaf)
    if array.nbytes <= _BLOCKS * _BLOCK_BYTES:
        return array
    flat = array.reshape(-1)
    length = max(_BLOCK_BYTES // array.itemsize, 1)
    starts = np.linspace(0, flat.size - length, _BLOCKS).astype(int)
    return np.concatenate([flat[start : start + length] for start in starts])


def strip_addresses(text: str) -> str:
    """Returns a text without the addresses of functions, which another process has elsewhere."""
    return re.sub(r"0x[0-9a-f]+", "", text)
