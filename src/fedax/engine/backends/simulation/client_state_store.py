"""Clients' memories outside the devices: a compiled program moves the rows of those that work, and no others."""

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

from fedax.core.federation import Memory, rows_as, with_memories
from fedax.engine.backends.simulation.host_callback import ask, over_lanes
from fedax.engine.backends.simulation.row_store import BLOCK, STORES, Away, RowStore
from fedax.engine.compilation.jaxpr import stage
from fedax.errors import InvalidInput

Place: TypeAlias = Literal["device", "host", "disk"]
"""The places of clients' memories."""
PLACES = ("device", "host", "disk")


@dataclasses.dataclass(frozen=True)
class Form:
    """The form of a client's row, and the program that makes its first one from the client's number.

    Attributes:
        program: a jaxpr of the memory's captured values and the number.
        structure: of a row.
        leaves: shapes and types of a row.
        clients: of the population.
    """

    program: Any
    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    clients: int

    @property
    def bytes(self) -> int:
        """Of a row."""
        return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in self.leaves)

    def packed(self, rows: Sequence[Any]) -> np.ndarray:
        """Rows as bytes, one leaf after the other."""
        flat = [np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8) for leaf in rows]
        return np.concatenate(flat, axis=1) if len(flat) != 1 else flat[0]

    def unpacked(self, rows: np.ndarray) -> list[np.ndarray]:
        """The inverse of `packed`."""
        ends = np.cumsum([leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in self.leaves])
        parts = np.split(rows, ends[:-1], axis=1)
        return [rows_as(part, leaf.dtype, leaf.shape) for part, leaf in zip(parts, self.leaves, strict=True)]

    def store(self, place: Away) -> RowStore:
        """A new store for such rows."""
        return RowStore(self.clients, self.bytes, place)

    def read(self, number: Any, version: Any, ids: Any) -> Any:
        """For `ask`: whether clients have rows in a store, and the rows."""

        def one(number: np.ndarray, version: np.ndarray, ids: np.ndarray) -> Any:
            there, rows = STORES[int(number)].read(int(version), ids)
            return there, *self.unpacked(rows)

        return over_lanes(one, (number, 0), (version, 0), (ids, 1))

    def write(self, number: Any, version: Any, ids: Any, *rows: Any) -> Any:
        """For `ask`: the version after a write."""

        def one(number: np.ndarray, version: np.ndarray, ids: np.ndarray, *rows: np.ndarray) -> Any:
            return (np.asarray(STORES[int(number)].write(int(version), ids, self.packed(rows)), np.int32),)

        own = [(new, 1 + len(leaf.shape)) for new, leaf in zip(rows, self.leaves, strict=True)]
        return over_lanes(one, (number, 0), (version, 0), (ids, 1), *own)


class OffloadedMemory(Memory):
    """Memories in a `RowStore`, to a program a store's number and a version of its rows.

    `_rows` has the values that first rows are made of. Reading and writing are pure: a write gives another version, which
    later reads depend on, so that a program keeps their order.

    Attributes:
        form: see `Form`.
        version: of the rows.
        number: of the store, None before a run has one.
        store: its owner, outside programs.
    """

    form: Form = eqx.field(static=True)
    version: Any
    number: Any = None
    store: RowStore | None = eqx.field(static=True, default=None)

    @classmethod
    def starting(cls, initial: PyTree, clients: int) -> "OffloadedMemory":
        """Of clients that all have their first rows; see `Federation.memory`."""
        first = initial if callable(initial) else lambda k: initial
        row = stage(lambda k: jax.tree.map(jnp.asarray, first(k)), jnp.int32(0))
        leaves, structure = jax.tree.flatten(row.out_shapes)
        return cls(row.consts, Form(row.jaxpr, structure, tuple(leaves), clients), jnp.int32(0))

    def take(self, ids: Int[Array, "some"]) -> PyTree:
        shapes = [jax.ShapeDtypeStruct((*ids.shape, *leaf.shape), leaf.dtype) for leaf in self.form.leaves]
        forms = jax.ShapeDtypeStruct(ids.shape, bool), *shapes
        there, *rows = ask(self.form.read, forms, self._known, self.version, jnp.asarray(ids, jnp.int32))

        def chosen(row: Array, other: Array) -> Array:
            return jnp.where(there.reshape(there.shape + (1,) * (row.ndim - 1)), row, other)

        return jax.tree.unflatten(self.form.structure, list(map(chosen, rows, jax.vmap(self._first)(ids))))

    def put(self, ids: Int[Array, "some"], rows: PyTree) -> Memory:
        leaves = [jnp.asarray(new, like.dtype) for new, like in zip(jax.tree.leaves(rows), self.form.leaves, strict=True)]
        given = self._known, self.version, jnp.asarray(ids, jnp.int32)
        (version,) = ask(self.form.write, [jax.ShapeDtypeStruct((), jnp.int32)], *given, *leaves)
        return dataclasses.replace(self, version=version)

    def all(self) -> PyTree:
        return self.each(lambda own: own).all()

    def each(self, function: Callable[[Any], Any]) -> Memory:
        clients = self.form.clients
        width = max(1, min(clients, BLOCK // max(self.form.bytes, 1)))
        blocks = -(-clients // width)
        ids = jnp.minimum(jnp.arange(blocks * width, dtype=jnp.int32), clients - 1).reshape(blocks, width)
        values = jax.lax.map(lambda some: jax.vmap(function)(self.take(some)), ids)
        return Memory(jax.tree.map(lambda rows: rows.reshape(blocks * width, *rows.shape[2:])[:clients], values))

    @property
    def arrays(self) -> int:
        return len(self.form.leaves)

    def written(self) -> tuple[np.ndarray | None, list[np.ndarray]]:
        store, version = STORES[int(self.number)], int(self.version)
        ids = store.written(version)
        return ids, self.form.unpacked(store.read(version, ids)[1])

    def restored(self, ids: np.ndarray | None, rows: list[np.ndarray]) -> "OffloadedMemory":
        store = self.form.store("host" if self.store is None else self.store.place)
        arrays = [rows_as(kept, leaf.dtype, leaf.shape) for kept, leaf in zip(rows, self.form.leaves, strict=True)]
        whose = np.arange(self.form.clients, dtype=np.int32) if ids is None else ids
        places = store.pieces(np.arange(len(whose)))
        store.fill((whose[some], self.form.packed([rows[some] for rows in arrays])) for some in places)
        return self._in(store)

    def copied(self) -> "OffloadedMemory":
        store = STORES[int(self.number)]
        return self._in(store.copy(int(self.version), store.place))

    def here(self) -> Memory:
        return Memory(self.all())

    def _in(self, store: RowStore) -> "OffloadedMemory":
        return dataclasses.replace(self, number=jnp.int32(store.number), version=jnp.int32(0), store=store)

    @property
    def _known(self) -> Any:
        if self.number is None:
            reason = "with memory outside the device, clients' memories come to exist after `init`"
            raise InvalidInput.because("fed.memory(...)", reason, 'Simulation(memory="device") has them at once.')
        return self.number

    def _first(self, k: Int[Array, ""]) -> list[Array]:
        return [jnp.asarray(leaf) for leaf in jax.core.eval_jaxpr(self.form.program, self._rows, k)]


def _offloaded(change: Callable[[Any], Any]) -> Callable[[Memory], Memory]:
    """A change of memories outside the device that leaves others as they are."""
    return lambda memory: change(memory) if isinstance(memory, OffloadedMemory) else memory


def owned(tree: Any) -> Any:
    """A carry outside programs: memories hold their stores."""
    change = lambda memory: dataclasses.replace(memory, store=STORES[int(memory.number)])  # noqa: E731
    return with_memories(tree, _offloaded(change))


def in_stores(tree: Any) -> Any:
    """A carry with all memories outside the device."""

    def stored(memory: Memory) -> OffloadedMemory:
        if isinstance(memory, OffloadedMemory):
            return memory
        _, rows = memory.written()
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), memory.all())
        return OffloadedMemory.starting(zeros, len(rows[0])).restored(None, rows)

    return with_memories(tree, stored)


def bare(tree: Any) -> Any:
    """A carry as a program takes it: memories do not hold their stores."""
    return with_memories(tree, _offloaded(lambda memory: dataclasses.replace(memory, store=None)))


def begun_anew(tree: Any) -> bool:
    """Whether there are memories that are not those of the run's start."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, OffloadedMemory))
    return any(isinstance(node, OffloadedMemory) and node.number is None for node in nodes)


def housed(tree: Any, place: Place) -> tuple[Any, list[RowStore]]:
    """A program's states, where every run has stores of its own, with the rows that they had before; and the stores."""
    made: list[RowStore] = []
    if place == "device":
        return tree, made

    def of(memory: OffloadedMemory) -> OffloadedMemory:
        versions = np.asarray(memory.version)
        if memory.number is None:
            stores = [memory.form.store(place) for _ in range(versions.size)]
        else:
            sources = zip(np.asarray(memory.number).flat, versions.flat, strict=True)
            stores = [STORES[int(number)].copy(int(version), place) for number, version in sources]
        made.extend(stores)
        numbers = np.array([store.number for store in stores], np.int32).reshape(versions.shape)
        number, version = jax.device_put((numbers, np.zeros_like(versions)), memory.version.sharding)
        # first rows may be made of the very buffer of the model, which a program takes over only once
        rows = jax.tree.map(jnp.array, memory._rows)
        return dataclasses.replace(memory, _rows=rows, number=number, version=version)

    return with_memories(tree, _offloaded(of)), made


def check(tree: Any) -> None:
    """Refuses states whose memories can no longer be read.

    Raises:
        FedaxError: such a state.
    """

    def one(memory: OffloadedMemory) -> OffloadedMemory:
        for number, version in zip(np.asarray(memory.number).flat, np.asarray(memory.version).flat, strict=True):
            STORES[int(number)].check(int(version))
        return memory

    with_memories(tree, _offloaded(one))
