"""Keeps training data on the host and streams it to the devices client by client."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedax.core.task import Ragged, Task
from fedax.engine.backends.simulation.host_callback import HandleRegistry, map_lanes
from fedax.examples.federated import FederatedData
from fedax.examples.memmap import RowReader
from fedax.utils.random import Index

_SETS: "HandleRegistry[HostExamples]" = HandleRegistry()


class HostExamples:
    """Examples of many clients on the host, by the handle `number`.

    Args:
        data: see `Ragged`.
    """

    def __init__(self, data: Ragged) -> None:
        self.readers = {name: RowReader(_as_numpy(values)) for name, values in data.arrays.items()}
        self.offsets = np.asarray(data.offsets)
        self.largest = data.largest
        self.number = _SETS.add(self)

    def client(self, k: int) -> dict[str, np.ndarray]:
        """Returns a client's examples, padded with zeros to the size of the largest client."""
        return self.rows(
            int(self.offsets[k]), int(self.offsets[k + 1] - self.offsets[k]), self.largest
        )

    def rows(self, begin: int, count: int, length: int) -> dict[str, np.ndarray]:
        """Returns `count` consecutive examples, padded with zeros to `length` rows."""
        padded = {}
        for name, reader in self.readers.items():
            rows = reader.read(begin, count)
            if len(rows) < length:
                rows = np.concatenate(
                    [rows, np.zeros((length - len(rows), *rows.shape[1:]), rows.dtype)]
                )
            padded[name] = rows
        return padded


class HostRagged(Ragged):
    """Examples that a compiled program reads by host callbacks.

    `arrays` has only their shapes and types.
    """

    arrays: Mapping[str, Any]
    number: Int[Array | np.ndarray, ""] = eqx.field(kw_only=True)

    @classmethod
    def from_examples(cls, data: Ragged, examples: HostExamples) -> "HostRagged":
        """Creates the compiled program's side of examples on the host."""
        shapes = {
            name: jax.ShapeDtypeStruct(values.shape, values.dtype)
            for name, values in data.arrays.items()
        }
        return cls(
            shapes,
            data.offsets,
            data.clients,
            data.largest,
            number=np.asarray(examples.number, np.int32),
        )

    def located(self, k: Index) -> tuple[Mapping[str, Array], Int[Array, ""], Int[Array, ""]]:
        offsets = jnp.asarray(self.offsets)
        return (
            self._call_host(_read_client, self.largest, k),
            jnp.int32(0),
            offsets[k + 1] - offsets[k],
        )

    def piece(self, begin: Index, width: int) -> dict[str, Array]:
        return self._call_host(
            lambda number, begin: _read_piece(number, begin, width), width, begin
        )

    def _call_host(self, callback: Any, rows: int, index: Index) -> dict[str, Array]:
        shapes = {
            name: jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype)
            for name, a in self.arrays.items()
        }
        return jax.pure_callback(
            callback, shapes, self.number, jnp.asarray(index, jnp.int32), vmap_method="expand_dims"
        )


def _read_client(number: Any, k: Any) -> dict[str, np.ndarray]:
    return map_lanes(lambda number, k: _SETS[int(number)].client(int(k)), (number, 0), (k, 0))


def _read_piece(number: Any, begin: Any, width: int) -> dict[str, np.ndarray]:
    return map_lanes(
        lambda number, begin: _SETS[int(number)].rows(int(begin), width, width),
        (number, 0),
        (begin, 0),
    )


class HostDataset:
    """Data sets of a run on the host: training, test and validation examples, also of held-out
    clients.

    Args:
        task: with the examples of all clients.

    Attributes:
        task: the same with `HostRagged` data, for compiled programs.
    """

    def __init__(self, task: Task) -> None:
        self._sets: list[HostExamples] = []
        self.task = task.with_data(self._move_data(task.data))

    def _move_data(self, data: FederatedData) -> FederatedData:
        moved: dict[str, Any] = {name: self._put(part) for name, part in data.parts.items()}
        if data.unseen is not None:
            moved["unseen"] = self._move_data(data.unseen)
        return eqx.tree_at(
            lambda data: [getattr(data, name) for name in moved], data, list(moved.values())
        )

    def _put(self, data: Ragged) -> HostRagged:
        self._sets.append(HostExamples(data))
        return HostRagged.from_examples(data, self._sets[-1])


def is_in_files(task: Task) -> bool:
    """Returns whether any of the clients' examples are in memory-mapped files."""
    has_memmap = any(
        isinstance(values, np.memmap)
        for part in task.data.parts.values()
        for values in part.arrays.values()
    )
    return has_memmap or (task.unseen is not None and is_in_files(task.unseen))


def _as_numpy(values: Any) -> np.ndarray:
    return values if isinstance(values, np.memmap) else np.asarray(values)
