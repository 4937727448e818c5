"""Keeps training data on the host and streams it to the devices client by client."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedax.core.task import Task
from fedax.engine.backends.simulation.host_callback import HandleRegistry
from fedax.examples.federated import FederatedData
from fedax.examples.memmap import RowReader
from fedax.examples.ragged import Ragged
from fedax.utils.random import Index

_SETS: "HandleRegistry[HostExamples]" = HandleRegistry()


class HostExamples:
    """Examples of many clients on the host, by the handle `number`.

    Args:
        arrays: of all examples, by name.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.readers = {name: RowReader(np.asanyarray(values)) for name, values in arrays.items()}
        self.number = _SETS.add(self)

    def read(self, begin: int, count: int, length: int) -> dict[str, np.ndarray]:
        """Returns `count` consecutive examples, padded with zeros to `length` rows."""
        padded = {}
        for name, reader in self.readers.items():
            rows = reader.read(begin, count)
            padded[name] = np.zeros((length, *rows.shape[1:]), rows.dtype)
            padded[name][: len(rows)] = rows
        return padded


class HostRagged(Ragged):
    """Examples that a compiled program reads by host callbacks.

    `arrays` has only their shapes and types.
    """

    arrays: Mapping[str, Any]
    number: Int[Array | np.ndarray, ""] = eqx.field(kw_only=True)

    def located(self, k: Index) -> tuple[Mapping[str, Array], Int[Array, ""], Int[Array, ""]]:
        offsets = jnp.asarray(self.offsets)
        size = offsets[k + 1] - offsets[k]
        return self._read(offsets[k], size, self.largest), jnp.int32(0), size

    def piece(self, begin: Index, width: int) -> dict[str, Array]:
        return self._read(begin, jnp.int32(width), width)

    def _read(self, begin: Index, count: Index, length: int) -> dict[str, Array]:
        """Reads `count` examples from place `begin` on, padded to `length` rows."""

        def read(number: Any, begin: Any, count: Any) -> dict[str, np.ndarray]:
            return _SETS[int(number)].read(int(begin), int(count), length)

        shapes = {
            name: jax.ShapeDtypeStruct((length, *values.shape[1:]), values.dtype)
            for name, values in self.arrays.items()
        }
        begin = jnp.asarray(begin, jnp.int32)
        return jax.pure_callback(read, shapes, self.number, begin, count, vmap_method="sequential")


def keep_on_host(task: Task) -> tuple[Task, list[HostExamples]]:
    """Returns the task with `HostRagged` data for compiled programs, and what its handles mean."""
    sets: list[HostExamples] = []

    def put(part: Ragged) -> HostRagged:
        examples = HostExamples(part.arrays)
        sets.append(examples)
        shapes = {
            name: jax.ShapeDtypeStruct(values.shape, values.dtype)
            for name, values in part.arrays.items()
        }
        number = np.asarray(examples.number, np.int32)
        return HostRagged(shapes, part.offsets, part.clients, part.largest, number=number)

    def move(data: FederatedData) -> FederatedData:
        moved: dict[str, Any] = {name: put(part) for name, part in data.parts.items()}
        if data.unseen is not None:
            moved["unseen"] = move(data.unseen)
        return eqx.tree_at(
            lambda data: [getattr(data, name) for name in moved], data, list(moved.values())
        )

    return task.with_data(move(task.data)), sets


def is_in_files(task: Task) -> bool:
    """Returns whether any of the clients' examples are in memory-mapped files."""
    has_memmap = any(
        isinstance(values, np.memmap)
        for part in task.data.parts.values()
        for values in part.arrays.values()
    )
    return has_memmap or (task.unseen is not None and is_in_files(task.unseen))
