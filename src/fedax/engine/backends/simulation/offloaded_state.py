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
        columns = np.split(rows, ends[:-1], axis=1)
        return [
            rows_as(column, leaf.dtype, leaf.shape)
            for column, leaf in zip(columns, self.leaves, strict=True)
        ]

    def store(self, placement: OffloadPlacement) -> ClientStateStore:
        """Creates a store for such rows."""
        return ClientStateStore(self.clients, self.bytes, placement)

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

    def put(self, ids: Int[Array, "some"], rows: PyTree) -> Memory:
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
        store, version = STORES[int(self.number)], int(self.version)
        ids = store.written_ids(version)
        return ids, self.row_format.unpack(store.read(version, ids)[1])

    def restored(self, ids: np.ndarray | None, rows: list[np.ndarray]) -> "OffloadedMemory":
        store = self.row_format.store("host" if self.store is None else self.store.placement)
        arrays = [
            rows_as(row_array, leaf.dtype, leaf.shape)
            for row_array, leaf in zip(rows, self.row_format.leaves, strict=True)
        ]
        client_ids = np.arange(self.row_format.clients, dtype=np.int32) if ids is None else ids
        blocks = store.split_blocks(np.arange(len(client_ids)))
        store.fill(
            (client_ids[block], self.row_format.pack([rows[block] for rows in arrays]))
            for block in blocks
        )
        return self._with_store(store)

    def copied(self) -> "OffloadedMemory":
        store = STORES[int(self.number)]
        return self._with_store(store.copy(int(self.version), store.placement))

    def here(self) -> Memory:
        return Memory(self.all())

    def _with_store(self, store: ClientStateStore) -> "OffloadedMemory":
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


def _restrict_to_offloaded(change: Callable[[Any], Any]) -> Callable[[Memory], Memory]:
    """Makes a function of offloaded states leave all other states as they are."""
    return lambda memory: change(memory) if isinstance(memory, OffloadedMemory) else memory


def attach_stores(tree: Any) -> Any:
    """Returns a carry for use outside of programs, in which states hold their stores."""
    change = lambda memory: dataclasses.replace(memory, store=STORES[int(memory.number)])  # noqa: E731
    return with_memories(tree, _restrict_to_offloaded(change))


def offload_state(tree: Any) -> Any:
    """Returns a carry with all client states moved off the device."""

    def offload(memory: Memory) -> OffloadedMemory:
        if isinstance(memory, OffloadedMemory):
            return memory
        _, rows = memory.written()
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), memory.all())
        return OffloadedMemory.create(zeros, len(rows[0])).restored(None, rows)

    return with_memories(tree, offload)


def detach_stores(tree: Any) -> Any:
    """Returns a carry as a program takes it, in which states do not hold their stores."""
    return with_memories(
        tree, _restrict_to_offloaded(lambda memory: dataclasses.replace(memory, store=None))
    )


def has_unallocated_state(tree: Any) -> bool:
    """Returns whether a carry has states that were created inside a round, without a store."""
    nodes = jax.tree.leaves(tree, is_leaf=is_memory)
    return any(isinstance(node, OffloadedMemory) and node.number is None for node in nodes)


def allocate_stores(tree: Any, placement: StatePlacement) -> tuple[Any, list[ClientStateStore]]:
    """Gives every run its own stores, with copies of the rows that it had before.

    Returns the carry and the stores.
    """
    new_stores: list[ClientStateStore] = []
    if placement == "device":
        return tree, new_stores

    def allocate(memory: OffloadedMemory) -> OffloadedMemory:
        versions = np.asarray(memory.version)
        if memory.number is None:
            stores = [memory.row_format.store(placement) for _ in range(versions.size)]
        else:
            sources = zip(np.asarray(memory.number).flat, versions.flat, strict=True)
            stores = [
                STORES[int(number)].copy(int(version), placement) for number, version in sources
            ]
        new_stores.extend(stores)
        numbers = np.array([store.number for store in stores], np.int32).reshape(versions.shape)
        number, version = jax.device_put(
            (numbers, np.zeros_like(versions)), memory.version.sharding
        )
        # initial rows may share the model's buffer, and a program can donate a buffer only once
        rows = jax.tree.map(jnp.array, memory._rows)
        return dataclasses.replace(memory, _rows=rows, number=number, version=version)

    return with_memories(tree, _restrict_to_offloaded(allocate)), new_stores


def check_versions(tree: Any) -> None:
    """Raises if states can no longer be read.

    Raises:
        FedaxError: a version of a state that its store has dropped.
    """

    def check_store(memory: OffloadedMemory) -> OffloadedMemory:
        for number, version in zip(
            np.asarray(memory.number).flat, np.asarray(memory.version).flat, strict=True
        ):
            STORES[int(number)].check(int(version))
        return memory

    with_memories(tree, _restrict_to_offloaded(check_store))
