"""What a simulation keeps outside the devices: clients' states, in host memory or on disk, and
examples. Compiled programs reach both through host callbacks.

A program reads and writes the states of the clients that work in a round. The rows are those of the
newest state: a write takes the number of writes before it and returns the next one, on which later
reads depend. This makes XLA keep the order of the callbacks.
"""

import dataclasses
import itertools
import math
import mmap
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array, Int, PyTree

from fedax.core.federation import ClientStates, with_states
from fedax.core.task import Task
from fedax.engine.round.phase import to_shapes
from fedax.engine.round.single_client import with_parts
from fedax.errors import FedaxError
from fedax.examples.federated import FederatedData
from fedax.examples.memmap import RowReader
from fedax.examples.ragged import Ragged
from fedax.utils.random import Index


def call_host(
    function: Callable[..., Sequence[np.ndarray]],
    shapes: Sequence[jax.ShapeDtypeStruct],
    *operands: Any,
) -> list[Array]:
    """Calls a pure function on the host.

    It may be called again or not at all, on one device of a mesh or on all.

    Args:
        function: of NumPy arrays.
        shapes: shapes and types of the results.
        operands: its arguments.
    """
    arrays = [jnp.asarray(operand) for operand in operands]
    if jax.default_backend() != "cpu":
        return jax.pure_callback(function, list(shapes), *arrays, vmap_method="sequential")

    # `jax.pure_callback` copies its arguments to a device for the function on the host. The CPU
    # client copies arrays above 100 KiB in its own threads. While one device waits in a callback
    # and another waits for that device, no thread may be left, and both hang (jaxlib 0.10.2).
    def fill(context: Any, results: Sequence[Any], *arguments: Any) -> None:
        values = function(*map(np.asarray, arguments))
        for result, value in zip(results, values, strict=True):
            np.asarray(result)[...] = value

    return buffer_callback(fill, list(shapes), vmap_method="sequential")(*arrays)


_NUMBERS = itertools.count()
"""Handles, by which compiled programs know what lies on the host."""
StatePlacement: TypeAlias = Literal["device", "host", "disk"]
"""Where clients' states are stored."""
BLOCK_BYTES = 1 << 22
"""Bytes of rows that come to the device at a time where all are needed."""


class RowStore:
    """Rows of clients by id, one array for each leaf. A row exists once it has been written.

    Args:
        clients: number of clients of the population.
        leaves: shapes and types of a row.
        placement: `"host"` for the process's memory, `"disk"` for an unnamed temporary file, which
            ends with the store or the process.

    Attributes:
        number: handle by which compiled programs know the store.
        version: the writes of programs so far.
        exists: which clients have a row.
    """

    def __init__(
        self, clients: int, leaves: Sequence[jax.ShapeDtypeStruct], placement: StatePlacement
    ) -> None:
        self.leaves = leaves
        self.placement: StatePlacement = placement
        self.version = 0
        self.exists = np.zeros(clients, bool)
        self._arrays = [
            _map_zeros((clients, *leaf.shape), leaf.dtype, placement) for leaf in leaves
        ]
        self._lock = threading.Lock()
        self.number = next(_NUMBERS)
        STORES[self.number] = self

    def read(self, version: int, ids: np.ndarray) -> list[np.ndarray]:
        """Returns which clients have a row, and the leaves of the rows (zeros for others).

        Raises:
            FedaxError: a later write has replaced rows of this version.
        """
        with self._lock:
            if version != self.version:
                hint = 'Simulation(memory="device") keeps those of every state.'
                raise FedaxError(f"clients' states are read after later ones were written. {hint}")
            return [array.take(ids, 0, mode="clip") for array in (self.exists, *self._arrays)]

    def write(self, version: int, ids: np.ndarray, rows: Sequence[np.ndarray]) -> int:
        """Writes rows onto a version and returns the next one. Ids out of range are ignored."""
        with self._lock:
            # a program on several devices makes each call once a device
            if version == self.version:
                self.put(ids, rows)
                self.version += 1
        return version + 1

    def put(self, ids: np.ndarray, rows: Sequence[np.ndarray]) -> None:
        """Writes rows of the current version. If an id occurs twice, its last row counts."""
        is_client = (ids >= 0) & (ids < len(self.exists))
        ids = ids[is_client]
        self.exists[ids] = True
        for array, leaf in zip(self._arrays, rows, strict=True):
            array[ids] = leaf[is_client]

    def copy(self, placement: StatePlacement) -> "RowStore":
        """Returns a new store with the same rows."""
        store = RowStore(len(self.exists), self.leaves, placement)
        for k in np.flatnonzero(self.exists).tolist():
            store.put(np.array([k]), [array[k, None] for array in self._arrays])
        return store


def _map_zeros(shape: tuple[int, ...], dtype: Any, placement: StatePlacement) -> np.ndarray:
    """Returns zeros of which only what has been written takes room."""
    size = max(math.prod(shape) * dtype.itemsize, 1)
    if placement == "host":
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        return np.ndarray(shape, dtype, mmap.mmap(-1, size, flags))
    with tempfile.TemporaryFile(prefix="fedax-") as file:
        file.truncate(size)
        return np.ndarray(shape, dtype, mmap.mmap(file.fileno(), size))


_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""Without it, Linux refuses arrays that are larger than its memory."""
STORES = weakref.WeakValueDictionary[int, RowStore]()
"""Stores by handle, for as long as something else references them."""


def _read(number: Any, version: Any, ids: Any) -> list[np.ndarray]:
    """Returns whether clients have rows in a store, and the rows; called on the host."""
    return STORES[int(number)].read(int(version), np.asarray(ids))


def _write(number: Any, version: Any, ids: Any, *leaves: Any) -> list[np.ndarray]:
    """Writes rows and returns the new version; called on the host."""
    new_version = STORES[int(number)].write(
        int(version), np.asarray(ids), [np.asarray(leaf) for leaf in leaves]
    )
    return [np.asarray(new_version, np.int32)]


class OffloadedStates(ClientStates):
    """Client states in a `RowStore`, of which a program sees the handle.

    `_rows` has the arrays that initial rows are computed from.

    Attributes:
        program: computes a client's initial row: a jaxpr of captured arrays and the client's id.
        structure: tree structure of a row.
        leaves: shapes and types of a row.
        clients: number of clients of the population.
        version: writes before, see `RowStore`.
        number: handle of the store, None before the run has one.
        store: the store itself, outside of programs only; it keeps the handle alive.
    """

    program: Any = eqx.field(static=True)
    structure: Any = eqx.field(static=True)
    leaves: tuple[jax.ShapeDtypeStruct, ...] = eqx.field(static=True)
    clients: int = eqx.field(static=True)
    version: Any
    number: Any = None
    store: RowStore | None = eqx.field(static=True, default=None)

    @classmethod
    def create(cls, initial: PyTree, clients: int) -> "OffloadedStates":
        """Creates states whose rows are all initial; see `Federation.client_states`."""
        initial_row = initial if callable(initial) else lambda k: initial
        trace = jax.make_jaxpr(
            lambda k: jax.tree.map(jnp.asarray, initial_row(k)), return_shape=True
        )
        program, form = trace(jnp.int32(0))
        leaves, structure = jax.tree.flatten(form)
        return cls(program.consts, program.jaxpr, structure, tuple(leaves), clients, jnp.int32(0))

    def take(self, ids: Int[Array, "some"]) -> PyTree:
        ids = jnp.asarray(ids, jnp.int32)
        shapes = [
            jax.ShapeDtypeStruct((*ids.shape, *leaf.shape), leaf.dtype) for leaf in self.leaves
        ]
        forms = jax.ShapeDtypeStruct(ids.shape, bool), *shapes
        exists, *leaves = call_host(_read, forms, self.number, self.version, ids)

        # a client that never worked has no row; its initial one is computed in the program
        def select_row(exists: Array, row: list[Array], k: Array) -> PyTree:
            initial = jax.core.eval_jaxpr(self.program, self._rows, k)
            pairs = zip(row, initial, strict=True)
            selected = [jnp.where(exists, stored, start) for stored, start in pairs]
            return jax.tree.unflatten(self.structure, selected)

        return jax.vmap(select_row)(exists, leaves, ids)

    def put(self, ids: Int[Array, "some"], rows: PyTree) -> "OffloadedStates":
        leaves = [
            jnp.asarray(update, like.dtype)
            for update, like in zip(jax.tree.leaves(rows), self.leaves, strict=True)
        ]
        arguments = self.number, self.version, jnp.asarray(ids, jnp.int32)
        (version,) = call_host(_write, [jax.ShapeDtypeStruct((), jnp.int32)], *arguments, *leaves)
        return dataclasses.replace(self, version=version)

    def all(self) -> PyTree:
        return self.each(lambda state: state).all()

    def each(self, function: Callable[[Any], Any]) -> ClientStates:
        # in blocks (blocks, width), so that the device never holds all rows at once
        clients = self.clients
        row_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in self.leaves)
        width = max(1, min(clients, BLOCK_BYTES // max(row_bytes, 1)))
        blocks = -(-clients // width)
        ids = jnp.minimum(jnp.arange(blocks * width, dtype=jnp.int32), clients - 1)
        values = jax.lax.map(
            lambda block: jax.vmap(function)(self.take(block)), ids.reshape(blocks, width)
        )
        return ClientStates(
            jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[2:])[:clients], values)
        )

    def written(self) -> tuple[np.ndarray | None, list[np.ndarray]]:
        store = STORES[int(self.number)]
        ids = np.flatnonzero(store.exists).astype(np.int32)
        return ids, store.read(int(self.version), ids)[1:]

    def restored(self, ids: np.ndarray | None, rows: list[np.ndarray]) -> "OffloadedStates":
        store = self.new_store("host" if self.store is None else self.store.placement)
        client_ids = np.arange(self.clients, dtype=np.int32) if ids is None else ids
        store.put(client_ids, rows)
        return self._with_store(store)

    def copied(self) -> "OffloadedStates":
        store = STORES[int(self.number)]
        return self._with_store(store.copy(store.placement))

    def new_store(self, placement: StatePlacement) -> RowStore:
        """Returns an empty store for such states."""
        return RowStore(self.clients, self.leaves, placement)

    def _with_store(self, store: RowStore) -> "OffloadedStates":
        return dataclasses.replace(
            self, number=jnp.int32(store.number), version=jnp.int32(0), store=store
        )


def _with_offloaded(tree: Any, change: Callable[[OffloadedStates], ClientStates]) -> Any:
    """Returns a carry with changed states, of those that are off the device."""
    return with_states(
        tree, lambda memory: change(memory) if isinstance(memory, OffloadedStates) else memory
    )


def attach_stores(tree: Any) -> Any:
    """Returns a carry for use outside of programs, in which states hold their stores."""
    return _with_offloaded(
        tree, lambda memory: dataclasses.replace(memory, store=STORES[int(memory.number)])
    )


def detach_stores(tree: Any) -> Any:
    """Returns a carry as a program takes it, in which states do not hold their stores."""
    return _with_offloaded(tree, lambda memory: dataclasses.replace(memory, store=None))


def to_device(tree: Any) -> Any:
    """Returns a carry with all client states on the device, for engines that keep them there."""
    return _with_offloaded(tree, lambda memory: ClientStates(memory.all()))


def offload_state(tree: Any) -> Any:
    """Returns a carry with all client states moved off the device."""

    def offload(states: ClientStates) -> OffloadedStates:
        if isinstance(states, OffloadedStates):
            return states
        _, rows = states.written()
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), states.all())
        return OffloadedStates.create(zeros, len(rows[0])).restored(None, rows)

    return with_states(tree, offload)


def allocate_stores(tree: Any, placement: StatePlacement) -> tuple[Any, list[RowStore]]:
    """Gives every run its own stores, with copies of the rows that it had before.

    Returns the carry and the stores.
    """
    new_stores: list[RowStore] = []

    def allocate(memory: OffloadedStates) -> OffloadedStates:
        shape = memory.version.shape
        if memory.number is None:
            stores = [memory.new_store(placement) for _ in range(math.prod(shape))]
        else:
            numbers = np.asarray(memory.number).flat
            stores = [STORES[int(number)].copy(placement) for number in numbers]
        new_stores.extend(stores)
        handles = np.array([store.number for store in stores], np.int32).reshape(shape)
        number, version = jax.device_put(
            (handles, np.zeros(shape, np.int32)), memory.version.sharding
        )
        # initial rows may share the model's buffer, and a program can donate a buffer only once
        rows = jax.tree.map(jnp.array, memory._rows)
        return dataclasses.replace(memory, _rows=rows, number=number, version=version)

    return _with_offloaded(tree, allocate), new_stores


class HostExamples:
    """Examples of many clients on the host, by the handle `number`.

    Args:
        arrays: of all examples, by name.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        # in the order in which a pytree has them
        self.readers = [RowReader(np.asanyarray(arrays[name])) for name in sorted(arrays)]
        self.number = next(_NUMBERS)
        _SETS[self.number] = self

    def read(self, begin: int, count: int, length: int) -> list[np.ndarray]:
        """Returns `count` consecutive examples, padded with zeros to `length` rows."""
        padded = []
        for reader in self.readers:
            rows = reader.read(begin, count)
            padded.append(np.zeros((length, *rows.shape[1:]), rows.dtype))
            padded[-1][: len(rows)] = rows
        return padded


_SETS = weakref.WeakValueDictionary[int, HostExamples]()


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

        def read(number: Any, begin: Any, count: Any) -> list[np.ndarray]:
            return _SETS[int(number)].read(int(begin), int(count), length)

        shapes = [
            jax.ShapeDtypeStruct((length, *values.shape[1:]), values.dtype)
            for values in self.arrays.values()
        ]
        values = call_host(read, shapes, self.number, jnp.asarray(begin, jnp.int32), count)
        return dict(zip(self.arrays, values, strict=True))


def keep_on_host(task: Task) -> tuple[Task, list[HostExamples]]:
    """Returns the task with `HostRagged` data for compiled programs, and what its handles mean."""
    sets: list[HostExamples] = []

    def put(part: Ragged) -> HostRagged:
        examples = HostExamples(part.arrays)
        sets.append(examples)
        number = np.asarray(examples.number, np.int32)
        return HostRagged(
            to_shapes(part.arrays), part.offsets, part.clients, part.largest, number=number
        )

    def move(data: FederatedData) -> FederatedData:
        moved: dict[str, Any] = {name: put(part) for name, part in data.parts.items()}
        if data.unseen is not None:
            moved["unseen"] = move(data.unseen)
        return with_parts(data, moved)

    return task.with_data(move(task.data)), sets


def is_in_files(task: Task) -> bool:
    """Returns whether any of the clients' examples are in memory-mapped files."""
    arrays = jax.tree.leaves((task.data.parts, task.data.unseen))
    return any(isinstance(values, np.memmap) for values in arrays)
