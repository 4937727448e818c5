"""Clients' states outside the devices, in host memory or on disk.

A compiled program reads and writes the rows of the clients that work in a round, through host
callbacks. The rows are those of the newest state: a write takes the number of writes before it and
returns the next one, on which later reads depend. This makes XLA keep the order of the callbacks.
"""

import dataclasses
import functools
import math
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedax.core.federation import ClientStates, rows_as, with_states
from fedax.engine.backends.simulation.host_callback import HandleRegistry, call_host
from fedax.engine.compilation.jaxpr import Staged
from fedax.errors import FedaxError, InvalidInput

StatePlacement: TypeAlias = Literal["device", "host", "disk"]
"""Where clients' states are stored."""
BLOCK_BYTES = 1 << 22
"""Bytes of rows that come to the device at a time where all are needed."""


class RowStore:
    """Rows of clients by id. A row exists once it has been written.

    Args:
        clients: number of clients of the population.
        dtype: of a row, a record.
        placement: `"host"` for the process's memory, `"disk"` for an unnamed temporary file, which
            ends with the store or the process.

    Attributes:
        number: handle by which compiled programs know the store.
        version: the writes of programs so far.
        file: the file on disk, in which client k's row is the k-th; None for the host's memory.
    """

    def __init__(self, clients: int, dtype: np.dtype[Any], placement: StatePlacement) -> None:
        self.clients = clients
        self.dtype = dtype
        self.placement: StatePlacement = placement
        self.version = 0
        # rows in memory as bytes; of rows on disk only the keys count
        self._rows: dict[int, bytes] = {}
        self.file: Any = None
        if placement == "disk":
            self.file = tempfile.TemporaryFile(prefix="fedax-")  # noqa: SIM115, closed with the store
            weakref.finalize(self, self.file.close)
        self._lock = threading.Lock()
        self.number = STORES.add(self)

    def __len__(self) -> int:
        """Returns the number of rows that exist."""
        return len(self._rows)

    def read(self, version: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns which clients have a row, and the rows (zeros for others).

        Raises:
            FedaxError: a later write has replaced rows of this version.
        """
        with self._lock:
            if version != self.version:
                hint = 'Simulation(memory="device") keeps those of every state.'
                raise FedaxError(f"clients' states are read after later ones were written. {hint}")
            rows = [self._read_row(k) for k in ids.tolist()]
        exists = np.array([row is not None for row in rows], bool)
        empty = bytes(self.dtype.itemsize)
        return exists, np.frombuffer(b"".join(row or empty for row in rows), self.dtype)

    def write(self, version: int, ids: np.ndarray, rows: np.ndarray) -> int:
        """Writes rows onto a version and returns the next one. Ids out of range are ignored."""
        with self._lock:
            # a program on several devices makes each call once a device
            if version == self.version:
                self.put(ids, rows)
                self.version += 1
        return version + 1

    def put(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Writes rows of the current version. If an id occurs twice, its last row counts."""
        for k, row in zip(ids.tolist(), rows, strict=True):
            if 0 <= k < self.clients:
                self._write_row(k, row.tobytes())

    def written_ids(self) -> np.ndarray:
        """Returns the ids of the clients that have a row, ascending."""
        return np.array(sorted(self._rows), np.int32)

    def copy(self, placement: StatePlacement) -> "RowStore":
        """Returns a new store with the same rows."""
        store = RowStore(self.clients, self.dtype, placement)
        for k in self._rows:
            store._write_row(k, self._read_row(k) or b"")
        return store

    def _read_row(self, k: int) -> bytes | None:
        if self.file is None or k not in self._rows:
            return self._rows.get(k)
        self.file.seek(k * self.dtype.itemsize)
        return self.file.read(self.dtype.itemsize)

    def _write_row(self, k: int, row: bytes) -> None:
        if self.file is not None:
            self.file.seek(k * self.dtype.itemsize)
            self.file.write(row)
            row = b""
        self._rows[k] = row


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

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The record of a row: the leaves one after the other."""
        return np.dtype([(str(i), leaf.dtype, leaf.shape) for i, leaf in enumerate(self.leaves)])

    def pack(self, leaves: Sequence[Any]) -> np.ndarray:
        """Packs leaves of shape (rows, ...) to records (rows,)."""
        records = np.empty(len(leaves[0]), self.dtype)
        for i, leaf in enumerate(leaves):
            records[str(i)] = leaf
        return records

    def unpack(self, records: np.ndarray) -> list[np.ndarray]:
        """Inverts `pack`."""
        return [np.ascontiguousarray(records[name]) for name in self.dtype.names or ()]

    def read(self, number: Any, version: Any, ids: Any) -> list[np.ndarray]:
        """Returns whether clients have rows in a store, and the rows; called on the host."""
        exists, records = STORES[int(number)].read(int(version), np.asarray(ids))
        return [exists, *self.unpack(records)]

    def write(self, number: Any, version: Any, ids: Any, *leaves: Any) -> list[np.ndarray]:
        """Writes rows and returns the new version; called on the host."""
        records = self.pack(leaves)
        new_version = STORES[int(number)].write(int(version), np.asarray(ids), records)
        return [np.asarray(new_version, np.int32)]


class OffloadedStates(ClientStates):
    """Client states in a `RowStore`, of which a program sees the handle.

    `_rows` has the arrays that initial rows are computed from.

    Attributes:
        row_format: see `RowFormat`.
        version: writes before, see `RowStore`.
        number: handle of the store, None before the run has one.
        store: the store itself, outside of programs only; it keeps the handle alive.
    """

    row_format: RowFormat = eqx.field(static=True)
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
        row_format = RowFormat(program.jaxpr, structure, tuple(leaves), clients)
        return cls(program.consts, row_format, jnp.int32(0))

    def take(self, ids: Int[Array, "some"]) -> PyTree:
        row_format = self.row_format
        ids = jnp.asarray(ids, jnp.int32)
        shapes = [
            jax.ShapeDtypeStruct((*ids.shape, *leaf.shape), leaf.dtype)
            for leaf in row_format.leaves
        ]
        forms = jax.ShapeDtypeStruct(ids.shape, bool), *shapes
        exists, *leaves = call_host(row_format.read, forms, self._handle, self.version, ids)
        form = jax.tree.unflatten(row_format.structure, row_format.leaves)
        initial_row = Staged(row_format.program, self._rows, form)

        # a client that never worked has no row; its initial one is computed in the program
        def select_row(exists: Array, row: PyTree, k: Array) -> PyTree:
            return jax.tree.map(
                lambda stored, initial: jnp.where(exists, stored, initial), row, initial_row(k)
            )

        return jax.vmap(select_row)(exists, jax.tree.unflatten(row_format.structure, leaves), ids)

    def put(self, ids: Int[Array, "some"], rows: PyTree) -> "OffloadedStates":
        leaves = [
            jnp.asarray(update, like.dtype)
            for update, like in zip(jax.tree.leaves(rows), self.row_format.leaves, strict=True)
        ]
        arguments = self._handle, self.version, jnp.asarray(ids, jnp.int32)
        (version,) = call_host(
            self.row_format.write, [jax.ShapeDtypeStruct((), jnp.int32)], *arguments, *leaves
        )
        return dataclasses.replace(self, version=version)

    def all(self) -> PyTree:
        return self.each(lambda state: state).all()

    def each(self, function: Callable[[Any], Any]) -> ClientStates:
        # in blocks (blocks, width), so that the device never holds all rows at once
        clients = self.row_format.clients
        width = max(1, min(clients, BLOCK_BYTES // max(self.row_format.dtype.itemsize, 1)))
        blocks = -(-clients // width)
        ids = jnp.minimum(jnp.arange(blocks * width, dtype=jnp.int32), clients - 1)
        values = jax.lax.map(
            lambda block: jax.vmap(function)(self.take(block)), ids.reshape(blocks, width)
        )
        return ClientStates(
            jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[2:])[:clients], values)
        )

    @property
    def arrays(self) -> int:
        return len(self.row_format.leaves)

    def written(self) -> tuple[np.ndarray | None, list[np.ndarray]]:
        store = STORES[int(self.number)]
        ids = store.written_ids()
        return ids, self.row_format.unpack(store.read(int(self.version), ids)[1])

    def restored(self, ids: np.ndarray | None, rows: list[np.ndarray]) -> "OffloadedStates":
        store = self.new_store("host" if self.store is None else self.store.placement)
        leaves = [
            rows_as(stored, leaf.dtype, leaf.shape)
            for stored, leaf in zip(rows, self.row_format.leaves, strict=True)
        ]
        client_ids = np.arange(self.row_format.clients, dtype=np.int32) if ids is None else ids
        store.put(client_ids, self.row_format.pack(leaves))
        return self._with_store(store)

    def copied(self) -> "OffloadedStates":
        store = STORES[int(self.number)]
        return self._with_store(store.copy(store.placement))

    def here(self) -> ClientStates:
        return ClientStates(self.all())

    def new_store(self, placement: StatePlacement) -> RowStore:
        """Returns an empty store for such states."""
        return RowStore(self.row_format.clients, self.row_format.dtype, placement)

    def _with_store(self, store: RowStore) -> "OffloadedStates":
        return dataclasses.replace(
            self, number=jnp.int32(store.number), version=jnp.int32(0), store=store
        )

    @property
    def _handle(self) -> Any:
        if self.number is None:
            reason = "with memory outside the device, clients' states come to exist after `init`"
            raise InvalidInput.because(
                "fed.client_states(...)", reason, 'Simulation(memory="device") has them at once.'
            )
        return self.number


def _with_offloaded(tree: Any, change: Callable[[OffloadedStates], OffloadedStates]) -> Any:
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
