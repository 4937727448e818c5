"""Clients' states outside the devices, in host memory or on disk.

A compiled program reads and writes the rows of the clients that work in a round, through host
callbacks. States are pure values to the program: a write returns a new version, see `state_store`.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedax.core.federation import Memory, is_memory, rows_as, with_memories
from fedax.engine.backends.simulation.host_callback import call_host, map_lanes
from fedax.engine.backends.simulation.state_store import (
    BLOCK_BYTES,
    STORES,
    ClientStateStore,
    OffloadPlacement,
)
from fedax.engine.compilation.jaxpr import stage
from fedax.errors import InvalidInput

StatePlacement: TypeAlias = Literal["device", "host", "disk"]
"""Where clients' states are stored."""
STATE_PLACEMENTS = ("device", "host", "disk")


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
        parts = np.split(rows, ends[:-1], axis=1)
        return [
            rows_as(part, leaf.dtype, leaf.shape)
            for part, leaf in zip(parts, self.leaves, strict=True)
        ]

    def store(self, place: OffloadPlacement) -> ClientStateStore:
        """Creates a store for such rows."""
        return ClientStateStore(self.clients, self.bytes, place)

    def read(self, number: Any, version: Any, ids: Any) -> Any:
        """Returns whether clients have rows in a store, and the rows; called on the host."""

        def one(number: np.ndarray, version: np.ndarray, ids: np.ndarray) -> Any:
            there, rows = STORES[int(number)].read(int(version), ids)
            return there, *self.unpack(rows)

        return map_lanes(one, (number, 0), (version, 0), (ids, 1))

    def write(self, number: Any, version: Any, ids: Any, *rows: Any) -> Any:
        """Writes rows and returns the new version; called on the host."""

        def one(number: np.ndarray, version: np.ndarray, ids: np.ndarray, *rows: np.ndarray) -> Any:
            return (
                np.asarray(STORES[int(number)].write(int(version), ids, self.pack(rows)), np.int32),
            )

        own = [(new, 1 + len(leaf.shape)) for new, leaf in zip(rows, self.leaves, strict=True)]
        return map_lanes(one, (number, 0), (version, 0), (ids, 1), *own)


class OffloadedMemory(Memory):
    """Client states in a `ClientStateStore`.

    A program sees the store's handle and a version of its rows.

    `_rows` has the arrays that initial rows are computed from. Reads and writes are pure: a write
    returns a new version, and later reads take it as an argument. This data dependency makes XLA
    keep the order of the callbacks.

    Attributes:
        row_format: see `RowFormat`.
        version: version of the rows.
        number: handle of the store, None before the run has one.
        store: the store itself, outside of programs only; it keeps the handle alive.
    """

    row_format: RowFormat = eqx.field(static=True)
    version: Any
    number: Any = None
    store: ClientStateStore | None = eqx.field(static=True, default=None)

    @classmethod
    def create(cls, initial: PyTree, clients: int) -> "OffloadedMemory":
        """Creates states of clients that all have their initial rows; see `Federation.memory`."""
        first = initial if callable(initial) else lambda k: initial
        row = stage(lambda k: jax.tree.map(jnp.asarray, first(k)), jnp.int32(0))
        leaves, structure = jax.tree.flatten(row.out_shapes)
        return cls(
            row.consts, RowFormat(row.jaxpr, structure, tuple(leaves), clients), jnp.int32(0)
        )

    def take(self, ids: Int[Array, "some"]) -> PyTree:
        shapes = [
            jax.ShapeDtypeStruct((*ids.shape, *leaf.shape), leaf.dtype)
            for leaf in self.row_format.leaves
        ]
        forms = jax.ShapeDtypeStruct(ids.shape, bool), *shapes
        there, *rows = call_host(
            self.row_format.read, forms, self._known, self.version, jnp.asarray(ids, jnp.int32)
        )

        # a client that never worked has no row; its initial one is computed in the program
        def chosen(row: Array, other: Array) -> Array:
            return jnp.where(there.reshape(there.shape + (1,) * (row.ndim - 1)), row, other)

        return jax.tree.unflatten(
            self.row_format.structure, list(map(chosen, rows, jax.vmap(self._first)(ids)))
        )

    def put(self, ids: Int[Array, "some"], rows: PyTree) -> Memory:
        leaves = [
            jnp.asarray(new, like.dtype)
            for new, like in zip(jax.tree.leaves(rows), self.row_format.leaves, strict=True)
        ]
        given = self._known, self.version, jnp.asarray(ids, jnp.int32)
        (version,) = call_host(
            self.row_format.write, [jax.ShapeDtypeStruct((), jnp.int32)], *given, *leaves
        )
        return dataclasses.replace(self, version=version)

    def all(self) -> PyTree:
        return self.each(lambda own: own).all()

    def each(self, function: Callable[[Any], Any]) -> Memory:
        # in blocks (blocks, width), so that the device never holds all rows at once
        clients = self.row_format.clients
        width = max(1, min(clients, BLOCK_BYTES // max(self.row_format.bytes, 1)))
        blocks = -(-clients // width)
        ids = jnp.minimum(jnp.arange(blocks * width, dtype=jnp.int32), clients - 1).reshape(
            blocks, width
        )
        values = jax.lax.map(lambda some: jax.vmap(function)(self.take(some)), ids)
        return Memory(
            jax.tree.map(
                lambda rows: rows.reshape(blocks * width, *rows.shape[2:])[:clients], values
            )
        )

    @property
    def arrays(self) -> int:
        return len(self.row_format.leaves)

    def written(self) -> tuple[np.ndarray | None, list[np.ndarray]]:
        store, version = STORES[int(self.number)], int(self.version)
        ids = store.written(version)
        return ids, self.row_format.unpack(store.read(version, ids)[1])

    def restored(self, ids: np.ndarray | None, rows: list[np.ndarray]) -> "OffloadedMemory":
        store = self.row_format.store("host" if self.store is None else self.store.place)
        arrays = [
            rows_as(kept, leaf.dtype, leaf.shape)
            for kept, leaf in zip(rows, self.row_format.leaves, strict=True)
        ]
        whose = np.arange(self.row_format.clients, dtype=np.int32) if ids is None else ids
        places = store.split_blocks(np.arange(len(whose)))
        store.fill(
            (whose[some], self.row_format.pack([rows[some] for rows in arrays])) for some in places
        )
        return self._in(store)

    def copied(self) -> "OffloadedMemory":
        store = STORES[int(self.number)]
        return self._in(store.copy(int(self.version), store.place))

    def here(self) -> Memory:
        return Memory(self.all())

    def _in(self, store: ClientStateStore) -> "OffloadedMemory":
        return dataclasses.replace(
            self, number=jnp.int32(store.number), version=jnp.int32(0), store=store
        )

    @property
    def _known(self) -> Any:
        if self.number is None:
            reason = "with memory outside the device, clients' memories come to exist after `init`"
            raise InvalidInput.because(
                "fed.memory(...)", reason, 'Simulation(memory="device") has them at once.'
            )
        return self.number

    def _first(self, k: Int[Array, ""]) -> list[Array]:
        return [
            jnp.asarray(leaf)
            for leaf in jax.core.eval_jaxpr(self.row_format.program, self._rows, k)
        ]


def _for_offloaded(change: Callable[[Any], Any]) -> Callable[[Memory], Memory]:
    """Makes a function of offloaded states leave all other states as they are."""
    return lambda memory: change(memory) if isinstance(memory, OffloadedMemory) else memory


def attach_stores(tree: Any) -> Any:
    """Returns a carry for use outside of programs, in which states hold their stores."""
    change = lambda memory: dataclasses.replace(memory, store=STORES[int(memory.number)])  # noqa: E731
    return with_memories(tree, _for_offloaded(change))


def offload_state(tree: Any) -> Any:
    """Returns a carry with all client states moved off the device."""

    def stored(memory: Memory) -> OffloadedMemory:
        if isinstance(memory, OffloadedMemory):
            return memory
        _, rows = memory.written()
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), memory.all())
        return OffloadedMemory.create(zeros, len(rows[0])).restored(None, rows)

    return with_memories(tree, stored)


def detach_stores(tree: Any) -> Any:
    """Returns a carry as a program takes it, in which states do not hold their stores."""
    return with_memories(
        tree, _for_offloaded(lambda memory: dataclasses.replace(memory, store=None))
    )


def has_unallocated_state(tree: Any) -> bool:
    """Returns whether a carry has states that were created inside a round, without a store."""
    nodes = jax.tree.leaves(tree, is_leaf=is_memory)
    return any(isinstance(node, OffloadedMemory) and node.number is None for node in nodes)


def allocate_stores(tree: Any, place: StatePlacement) -> tuple[Any, list[ClientStateStore]]:
    """Gives every run its own stores, with copies of the rows that it had before.

    Returns the carry and the stores.
    """
    made: list[ClientStateStore] = []
    if place == "device":
        return tree, made

    def of(memory: OffloadedMemory) -> OffloadedMemory:
        versions = np.asarray(memory.version)
        if memory.number is None:
            stores = [memory.row_format.store(place) for _ in range(versions.size)]
        else:
            sources = zip(np.asarray(memory.number).flat, versions.flat, strict=True)
            stores = [STORES[int(number)].copy(int(version), place) for number, version in sources]
        made.extend(stores)
        numbers = np.array([store.number for store in stores], np.int32).reshape(versions.shape)
        number, version = jax.device_put(
            (numbers, np.zeros_like(versions)), memory.version.sharding
        )
        # initial rows may share the model's buffer, and a program can donate a buffer only once
        rows = jax.tree.map(jnp.array, memory._rows)
        return dataclasses.replace(memory, _rows=rows, number=number, version=version)

    return with_memories(tree, _for_offloaded(of)), made


def check_versions(tree: Any) -> None:
    """Raises if states can no longer be read.

    Raises:
        FedaxError: a version of a state that its store has dropped.
    """

    def one(memory: OffloadedMemory) -> OffloadedMemory:
        for number, version in zip(
            np.asarray(memory.number).flat, np.asarray(memory.version).flat, strict=True
        ):
            STORES[int(number)].check(int(version))
        return memory

    with_memories(tree, _for_offloaded(one))
