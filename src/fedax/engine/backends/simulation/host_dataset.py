"""Examples that stay on the host, in memory or in files, and come to the devices a client, or a piece, at a time."""

import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from fedax.core.task import Ragged, Task
from fedax.engine.backends.simulation.backend import SimulationBackend
from fedax.engine.backends.simulation.host_callback import Numbered, over_lanes
from fedax.engine.round.client import Setup
from fedax.engine.round.context import RoundContext
from fedax.examples.memmap import RowReader
from fedax.utils.random import Index

AHEAD = 1 << 26
"""Bytes that are read ahead of the clients that work."""

_SETS: "Numbered[Shelved]" = Numbered()


class Shelved:
    """The examples of many clients on the host.

    Args:
        data: see `Ragged`.
    """

    def __init__(self, data: Ragged) -> None:
        self.readers = {name: RowReader(_plain(values)) for name, values in data.arrays.items()}
        self.offsets, self.largest, self.taken = np.asarray(data.offsets), data.largest, 0
        self.number = _SETS.add(self)

    def client(self, k: int) -> dict[str, np.ndarray]:
        """A client's examples, followed by zeros up to those of the largest."""
        self.taken += 1
        return self.rows(int(self.offsets[k]), int(self.offsets[k + 1] - self.offsets[k]), self.largest)

    def rows(self, begin: int, count: int, places: int) -> dict[str, np.ndarray]:
        """Consecutive examples, in arrays of so many places."""
        found = {}
        for name, reader in self.readers.items():
            rows = reader.read(begin, count)
            if len(rows) < places:
                rows = np.concatenate([rows, np.zeros((places - len(rows), *rows.shape[1:]), rows.dtype)])
            found[name] = rows
        return found

    def ahead(self, k: int) -> None:
        """Asks for a client's examples before it works."""
        for reader in self.readers.values():
            reader.ahead(int(self.offsets[k]), int(self.offsets[k + 1] - self.offsets[k]))


class OnShelf(Ragged):
    """Examples that a compiled program asks the host for; `arrays` has their shapes and types alone."""

    arrays: Mapping[str, Any]
    number: Int[Array | np.ndarray, ""] = eqx.field(kw_only=True)

    @classmethod
    def of_shelved(cls, data: Ragged, shelved: Shelved) -> "OnShelf":
        """Of some clients' examples."""
        shapes = {name: jax.ShapeDtypeStruct(values.shape, values.dtype) for name, values in data.arrays.items()}
        return cls(shapes, data.offsets, data.clients, data.largest, number=np.asarray(shelved.number, np.int32))

    def located(self, k: Index) -> tuple[Mapping[str, Array], Int[Array, ""], Int[Array, ""]]:
        offsets = jnp.asarray(self.offsets)
        return self._asked(_client, self.largest, k), jnp.int32(0), offsets[k + 1] - offsets[k]

    def piece(self, begin: Index, width: int) -> dict[str, Array]:
        return self._asked(lambda number, begin: _piece(number, begin, width), width, begin)

    def _asked(self, question: Any, rows: int, which: Index) -> dict[str, Array]:
        shapes = {name: jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype) for name, a in self.arrays.items()}
        return jax.pure_callback(question, shapes, self.number, jnp.asarray(which, jnp.int32), vmap_method="expand_dims")


def _client(number: Any, k: Any) -> dict[str, np.ndarray]:
    return over_lanes(lambda number, k: _SETS[int(number)].client(int(k)), (number, 0), (k, 0))


def _piece(number: Any, begin: Any, width: int) -> dict[str, np.ndarray]:
    return over_lanes(lambda number, begin: _SETS[int(number)].rows(int(begin), width, width), (number, 0), (begin, 0))


class Shelf:
    """The examples of a run's clients on the host.

    Args:
        setup: with everybody's examples.

    Attributes:
        task: as that of the setup, for compiled programs.
    """

    def __init__(self, setup: Setup) -> None:
        self._sets: list[Shelved] = []
        self.task = self._shelved(setup.task)
        self._reading: _Ahead | None = None

    def _shelved(self, task: Task) -> Task:
        sets = {name: getattr(task, name) for name in ("train", "test", "validation")}
        away = {name: self._put(data) for name, data in sets.items() if data is not None}
        more = {} if task.held_back is None else {"held_back": self._shelved(task.held_back)}
        new = away | more
        return eqx.tree_at(lambda task: [getattr(task, name) for name in new], task, list(new.values()))

    def _put(self, data: Ragged) -> OnShelf:
        self._sets.append(Shelved(data))
        return OnShelf.of_shelved(data, self._sets[-1])

    def read_ahead(self, setup: Setup, root: Key[Array, ""], first: int, count: int) -> None:
        """Reads the examples of the cohorts of some rounds as the schedule draws them, while the rounds go on.

        Clients that an algorithm draws in another way are not read ahead, only when they work.
        """
        train = self._sets[0]
        if setup.schedule.cohort is None or not any(reader.in_file for reader in train.readers.values()):
            return
        ids, counts = (
            np.asarray(x) for x in _draws(setup, root, jnp.int32(first) + jnp.arange(_up(count), dtype=jnp.int32))
        )
        if self._reading is not None:
            self._reading.stop()
        self._reading = _Ahead(train, itertools.chain.from_iterable(row[:n] for row, n in zip(ids[:count], counts[:count])))
        self._reading.start()


class _Ahead(threading.Thread):
    """Reads clients' examples in the order of their work, some way ahead of it."""

    def __init__(self, shelved: Shelved, clients: Iterator[Any]) -> None:
        super().__init__(daemon=True, name="fedax reads ahead")
        self.shelved, self.clients, self.begun, self.stopped = shelved, clients, shelved.taken, threading.Event()
        largest = shelved.largest * sum(reader.bytes for reader in shelved.readers.values())
        self.window = max(16, AHEAD // max(largest, 1))

    def run(self) -> None:
        for place, k in enumerate(self.clients):
            while place - (self.shelved.taken - self.begun) > self.window:
                if self.stopped.wait(0.002):
                    return
            if self.stopped.is_set():
                return
            self.shelved.ahead(int(k))

    def stop(self) -> None:
        self.stopped.set()


@eqx.filter_jit
def _draws(setup: Setup, root: Key[Array, ""], rounds: Int[Array, "rounds"]) -> tuple[Int[Array, "rounds capacity"], Any]:
    """The first draw of the schedule in each of some rounds, and how many clients it has."""

    def draw(t: Index) -> tuple[Array, Array]:
        cohort = RoundContext(SimulationBackend(setup), t, root).sample()
        return cohort.ids, jnp.asarray(cohort.count, jnp.int32)

    return jax.lax.map(draw, rounds)


def in_files(task: Task) -> bool:
    """Whether any of the clients' examples lie in memory-mapped files."""
    sets = (task.train, task.test, task.validation)
    here = any(isinstance(values, np.memmap) for data in sets if data is not None for values in data.arrays.values())
    return here or (task.held_back is not None and in_files(task.held_back))


def _plain(values: Any) -> np.ndarray:
    return values if isinstance(values, np.memmap) else np.asarray(values)


def _up(count: int) -> int:
    return 1 << max(3, (count - 1).bit_length())
