"""Clients' states outside the devices, in host memory or on disk.

A compiled program reads and writes the rows of the clients that work in a round, through host
callbacks. The rows are those of the newest state: a write takes the number of writes before it and
returns the next one, on which later reads depend. This makes XLA keep the order of the callbacks.
"""

import dataclasses
import math
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from fedax.core.federation import Memory, is_memory, rows_as, with_memories
from fedax.engine.backends.simulation.host_callback import HandleRegistry, call_host, map_lanes
from fedax.engine.compilation.jaxpr import stage
from fedax.errors import FedaxError, InvalidInput

StatePlacement: TypeAlias = Literal["device", "host", "disk"]
"""Where clients' states are stored."""
BLOCK_BYTES = 1 << 22
"""Bytes of rows that are copied, or come to the device, at a time where all are needed."""
GROWTH_BYTES = 1 << 26
"""The most bytes by which a store grows at a time, beyond what it needs."""


class RowStore:
    """Rows of bytes by client id. A row exists once it has been written.

    Args:
        clients: number of clients of the population.
        width: bytes of a row.
        placement: `"host"` for the process's memory, `"disk"` for an unnamed temporary file, which
            ends with the store or the process.

    Attributes:
        number: handle by which compiled programs know the store.
        version: the writes of programs so far.
    """

    def __init__(self, clients: int, width: int, placement: StatePlacement) -> None:
        self.placement: StatePlacement = placement
        self.width = width
        self.version = 0
        # slot + 1, or 0 for no row: pages of untouched zeros take no memory
        self._slots = np.zeros(clients, np.int32)
        self._used = 0
        self._memory = np.empty((0, width), np.uint8)
        self.file: Any = None
        if placement == "disk":
            self.file = tempfile.TemporaryFile(prefix="fedax-")  # noqa: SIM115, closed with the store
            weakref.finalize(self, self.file.close)
        self._capacity = 0
        self._reserve(1)
        self._lock = threading.Lock()
        self.number = STORES.add(self)

    def __len__(self) -> int:
        """Returns the number of rows that exist."""
        return self._used

    def read(self, version: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns which clients have a row, and the rows (undefined for others).

        Raises:
            FedaxError: a later write has replaced rows of this version.
        """
        with self._lock:
            if version != self.version:
                hint = 'Simulation(memory="device") keeps those of every state.'
                raise FedaxError(
                    f"clients' memories are read after later ones were written. {hint}"
                )
            slots = self._slots[np.clip(ids, 0, len(self._slots) - 1)] - 1
            exists = slots >= 0
            rows = np.empty((len(ids), self.width), np.uint8)
            rows[exists] = self._rows()[slots[exists]]
            return exists, rows

    def write(self, version: int, ids: np.ndarray, rows: np.ndarray) -> int:
        """Writes rows onto a version and returns the next one. Ids out of range are ignored."""
        with self._lock:
            # a program on several devices makes each call once a device
            if version == self.version:
                self.put(ids, rows)
                self.version += 1
        return version + 1

    def put(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Writes rows of the current version."""
        inside = (ids >= 0) & (ids < len(self._slots))
        # if an id occurs twice, its last row counts
        ids, last_index = np.unique(ids[inside][::-1], return_index=True)
        new_ids = ids[self._slots[ids] == 0]
        first = self._used + 1
        self._used += len(new_ids)
        self._slots[new_ids] = np.arange(first, self._used + 1)
        self._reserve(self._used)
        self._rows()[self._slots[ids] - 1] = rows[inside][::-1][last_index]

    def written_ids(self) -> np.ndarray:
        """Returns the ids of the clients that have a row, ascending."""
        return np.flatnonzero(self._slots).astype(np.int32)

    def copy(self, placement: StatePlacement) -> "RowStore":
        """Returns a new store with the same rows."""
        store = RowStore(len(self._slots), self.width, placement)
        ids = self.written_ids()
        step = max(1, BLOCK_BYTES // self.width)
        for begin in range(0, len(ids), step):
            block = ids[begin : begin + step]
            store.put(block, self._rows()[self._slots[block] - 1])
        return store

    def _rows(self) -> np.ndarray:
        """Returns all slots. A file is mapped anew, so that its pages do not stay in memory."""
        if self.file is None:
            return self._memory
        return np.memmap(self.file, np.uint8, "r+", shape=(self._capacity, self.width))

    def _reserve(self, slots: int) -> None:
        """Makes room for as many rows."""
        if slots <= self._capacity:
            return
        growth = max(slots - self._capacity, min(self._capacity, GROWTH_BYTES // self.width))
        self._capacity += growth
        if self.file is None:
            # The system moves the pages of a large array, so that growing copies no rows. No view
            # of the array exists outside of this class, which `refcheck` would look for.
            self._memory.resize((self._capacity, self.width), refcheck=False)
        else:
            # written, because a full disk is an error here and the process's end in a mapped file
            self.file.write(bytes(growth * self.width))
            self.file.flush()


STORES: HandleRegistry[RowStore] = HandleRegistry()
"""All stores by handle."""


@dataclasses.dataclass(frozen=True)
class RowFormat:
    """Shapes and types of a client's row, and the program of its initial value.

    Attributes:
        program: a jaxpr of captured arrays and the client's id.
        structure: tree structure of a row.
        leaves: shapes and types of a row.
        clients: number of clients of the population.
    """

    program: Any
    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    clients: int

    @property
    def bytes(self) -> int:
        """Size of a row."""
        return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in self.leaves)

    def pack(self, rows: Sequence[Any]) -> np.ndarray:
        """Packs leaves of shape (rows, ...) to bytes (rows, bytes), one leaf after the other."""
        flat = [np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8) for leaf in rows]
        return np.concatenate(flat, axis=1) if len(flat) != 1 else flat[0]

    def unpack(self, rows: np.ndarray) -> list[np.ndarray]:
        """Inverts `pack`."""
        ends = np.cumsum([leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in self.leaves])
        columns = np.split(rows, ends[:-1], axis=1)
        return [
            rows_as(column, leaf.dtype, leaf.shape)
            for column, leaf in zip(columns, self.leaves, strict=True)
        ]

    def store(self, placement: StatePlacement) -> RowStore:
        """Creates a store for such rows."""
        return RowStore(self.clients, self.bytes, placement)

    def read(self, number: Any, version: Any, ids: Any) -> Any:
        """Returns whether clients have rows in a store, and the rows; called on the host."""

        def read_lane(number: np.ndarray, version: np.ndarray, ids: np.ndarray) -> Any:
            exists, rows = STORES[int(number)].read(int(version), ids)
            return exists, *self.unpack(rows)

        return map_lanes(read_lane, (number, 0), (version, 0), (ids, 1))

    def write(self, number: Any, version: Any, ids: Any, *rows: Any) -> Any:
        """Writes rows and returns the new version; called on the host."""

        def write_lane(
            number: np.ndarray, version: np.ndarray, ids: np.ndarray, *rows: np.ndarray
        ) -> Any:
            return (
                np.asarray(STORES[int(number)].write(int(version), ids, self.pack(rows)), np.int32),
            )

        row_arguments = [
            (array, 1 + len(leaf.shape)) for array, leaf in zip(rows, self.leaves, strict=True)
        ]
        return map_lanes(write_lane, (number, 0), (version, 0), (ids, 1), *row_arguments)


class OffloadedMemory(Memory):
    """Client states in a `RowStore`, of which a program sees the handle.

    `_rows` has the arrays that initial rows are computed from.

    Attributes:
        row_format: see `RowFormat`.
        version: writes before, see `RowStore`.
        number: handle of the store, None before the run has one.
        replaced: ids, and the rows that they had, of the writes of this round.
        store: the store itself, outside of programs only; it keeps the handle alive.
    """

    row_format: RowFormat = eqx.field(static=True)
    version: Any
    number: Any = None
    replaced: tuple[Any, ...] = ()
    store: RowStore | None = eqx.field(static=True, default=None)

    @classmethod
    def create(cls, initial: PyTree, clients: int) -> "OffloadedMemory":
        """Creates states of clients that all have their initial rows; see `Federation.memory`."""
        initial_row = initial if callable(initial) else lambda k: initial
        staged = stage(lambda k: jax.tree.map(jnp.asarray, initial_row(k)), jnp.int32(0))
        leaves, structure = jax.tree.flatten(staged.out_shapes)
        return cls(
            staged.consts, RowFormat(staged.jaxpr, structure, tuple(leaves), clients), jnp.int32(0)
        )

    def take(self, ids: Int[Array, "some"]) -> PyTree:
        shapes = [
            jax.ShapeDtypeStruct((*ids.shape, *leaf.shape), leaf.dtype)
            for leaf in self.row_format.leaves
        ]
        forms = jax.ShapeDtypeStruct(ids.shape, bool), *shapes
        exists, *rows = call_host(
            self.row_format.read, forms, self._handle, self.version, jnp.asarray(ids, jnp.int32)
        )

        # a client that never worked has no row; its initial one is computed in the program
        def select_row(row: Array, initial: Array) -> Array:
            return jnp.where(exists.reshape(exists.shape + (1,) * (row.ndim - 1)), row, initial)

        return jax.tree.unflatten(
            self.row_format.structure, list(map(select_row, rows, jax.vmap(self._initial_row)(ids)))
        )

    def put(self, ids: Int[Array, "some"], rows: PyTree) -> "OffloadedMemory":
        leaves = [
            jnp.asarray(update, like.dtype)
            for update, like in zip(jax.tree.leaves(rows), self.row_format.leaves, strict=True)
        ]
        arguments = self._handle, self.version, jnp.asarray(ids, jnp.int32)
        (version,) = call_host(
            self.row_format.write, [jax.ShapeDtypeStruct((), jnp.int32)], *arguments, *leaves
        )
        return dataclasses.replace(self, version=version)

    def put_over(self, ids: Int[Array, "some"], before: PyTree, rows: PyTree) -> "OffloadedMemory":
        """Does as `put`, and stores the rows that the ids had, for `undo`."""
        replaced = (*self.replaced, (ids, before))
        return dataclasses.replace(self.put(ids, rows), replaced=replaced)

    def undo(self, condition: Bool[Array, ""]) -> "OffloadedMemory":
        """Undoes the writes of this round if the condition holds."""
        memory = self
        for ids, before in reversed(self.replaced):
            memory = memory.put(jnp.where(condition, ids, self.row_format.clients), before)
        return memory

    def all(self) -> PyTree:
        return self.each(lambda state: state).all()

    def each(self, function: Callable[[Any], Any]) -> Memory:
        # in blocks (blocks, width), so that the device never holds all rows at once
        clients = self.row_format.clients
        width = max(1, min(clients, BLOCK_BYTES // max(self.row_format.bytes, 1)))
        blocks = -(-clients // width)
        ids = jnp.minimum(jnp.arange(blocks * width, dtype=jnp.int32), clients - 1).reshape(
            blocks, width
        )
        values = jax.lax.map(lambda block: jax.vmap(function)(self.take(block)), ids)
        return Memory(
            jax.tree.map(
                lambda rows: rows.reshape(blocks * width, *rows.shape[2:])[:clients], values
            )
        )

    @property
    def arrays(self) -> int:
        return len(self.row_format.leaves)

    def written(self) -> tuple[np.ndarray | None, list[np.ndarray]]:
        store = STORES[int(self.number)]
        ids = store.written_ids()
        return ids, self.row_format.unpack(store.read(int(self.version), ids)[1])

    def restored(self, ids: np.ndarray | None, rows: list[np.ndarray]) -> "OffloadedMemory":
        store = self.row_format.store("host" if self.store is None else self.store.placement)
        arrays = [
            rows_as(row_array, leaf.dtype, leaf.shape)
            for row_array, leaf in zip(rows, self.row_format.leaves, strict=True)
        ]
        client_ids = np.arange(self.row_format.clients, dtype=np.int32) if ids is None else ids
        store.put(client_ids, self.row_format.pack(arrays))
        return self._with_store(store)

    def copied(self) -> "OffloadedMemory":
        store = STORES[int(self.number)]
        return self._with_store(store.copy(store.placement))

    def here(self) -> Memory:
        return Memory(self.all())

    def _with_store(self, store: RowStore) -> "OffloadedMemory":
        return dataclasses.replace(
            self, number=jnp.int32(store.number), version=jnp.int32(0), store=store
        )

    @property
    def _handle(self) -> Any:
        if self.number is None:
            reason = "with memory outside the device, clients' memories come to exist after `init`"
            raise InvalidInput.because(
                "fed.memory(...)", reason, 'Simulation(memory="device") has them at once.'
            )
        return self.number

    def _initial_row(self, k: Int[Array, ""]) -> list[Array]:
        return [
            jnp.asarray(leaf)
            for leaf in jax.core.eval_jaxpr(self.row_format.program, self._rows, k)
        ]


def _with_offloaded(tree: Any, change: Callable[[OffloadedMemory], OffloadedMemory]) -> Any:
    """Returns a carry with changed states, of those that are off the device."""
    return with_memories(
        tree, lambda memory: change(memory) if isinstance(memory, OffloadedMemory) else memory
    )


def attach_stores(tree: Any) -> Any:
    """Returns a carry for use outside of programs, in which states hold their stores."""
    return _with_offloaded(
        tree, lambda memory: dataclasses.replace(memory, store=STORES[int(memory.number)])
    )


def detach_stores(tree: Any) -> Any:
    """Returns a carry as a program takes it, in which states do not hold their stores."""
    return _with_offloaded(tree, lambda memory: dataclasses.replace(memory, store=None))


def end_round(tree: Any) -> Any:
    """Returns a carry in which states do not know what the round replaced."""
    return _with_offloaded(tree, lambda memory: dataclasses.replace(memory, replaced=()))


def offload_state(tree: Any) -> Any:
    """Returns a carry with all client states moved off the device."""

    def offload(memory: Memory) -> OffloadedMemory:
        if isinstance(memory, OffloadedMemory):
            return memory
        _, rows = memory.written()
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), memory.all())
        return OffloadedMemory.create(zeros, len(rows[0])).restored(None, rows)

    return with_memories(tree, offload)


def has_unallocated_state(tree: Any) -> bool:
    """Returns whether a carry has states that were created inside a round, without a store."""
    nodes = jax.tree.leaves(tree, is_leaf=is_memory)
    return any(isinstance(node, OffloadedMemory) and node.number is None for node in nodes)


def allocate_stores(tree: Any, placement: StatePlacement) -> tuple[Any, list[RowStore]]:
    """Gives every run its own stores, with copies of the rows that it had before.

    Returns the carry and the stores.
    """
    new_stores: list[RowStore] = []

    def allocate(memory: OffloadedMemory) -> OffloadedMemory:
        shape = memory.version.shape
        if memory.number is None:
            stores = [memory.row_format.store(placement) for _ in range(math.prod(shape))]
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
