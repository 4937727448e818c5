"""Clients' rows outside the devices: sparse, in memory or in a file, with the versions that somebody may still ask for."""

import itertools
import tempfile
import threading
import weakref
from collections.abc import Iterator
from typing import IO, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedax.engine.backends.simulation.host_callback import Numbered
from fedax.errors import FedaxError

Away: TypeAlias = Literal["host", "disk"]
"""The places outside the devices."""
BLOCK, HELD = 1 << 22, 1 << 26
"""Bytes of rows that are copied in one piece, and that memory is asked for at a time, whose pages the system gives as they fill."""
LEAST, UNDO = 4, 1 << 24
"""Writes that can be taken back: so many at least, and further ones up to so many bytes of rows."""


class Change(NamedTuple):
    """A write: the versions before and after it, and what it replaced.

    `there` says which of the clients had a row before, and `rows` what was in it.
    """

    before: int
    after: int
    ids: np.ndarray
    there: np.ndarray
    rows: np.ndarray


class RowStore:
    """Rows of bytes of some clients of a population: a row comes to exist when it is first written.

    A write makes a new version, and leaves those before it readable for as long as `LEAST` and `UNDO` say. A write onto an older
    version takes back what came after it; one that was made before is not made again. So programs may treat both as pure.

    Args:
        clients: of the population.
        width: the bytes of a row.
        place: of the rows, in the process's memory or in a file without a name, which ends with the store or the process.

    Attributes:
        number: by which compiled programs know it.
        version: the newest.
        moved: the bytes of rows read and written by programs so far.
    """

    def __init__(self, clients: int, width: int, place: Away) -> None:
        self.clients, self.width = clients, width
        self.place: Away = place
        self.version, self.moved, self._newest = 0, 0, 0
        self._slots = np.zeros(clients, np.int32)  # one more than the place, 0 for none: untouched zeros take no memory
        self._rows = _InFile(width) if place == "disk" else _InBlocks(width)
        self._free: list[int] = []
        self._used = 0
        self._log: list[Change] = []
        self._logged = 0
        self._lock = threading.Lock()
        self.number = STORES.add(self)

    def __len__(self) -> int:
        """The rows that exist."""
        return self._used - len(self._free)

    def check(self, version: int) -> None:
        """Refuses a version that can no longer be read.

        Raises:
            FedaxError: there is no such version, or no longer.
        """
        with self._lock:
            self._since(version)

    def read(self, version: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether some clients have a row in a version, and the rows, of any content for those who have none."""
        ids = np.clip(ids, 0, self.clients - 1)
        with self._lock:
            later = self._since(version)
            there, rows = self._current(ids)
            for change in reversed(later):
                place = np.minimum(np.searchsorted(change.ids, ids), len(change.ids) - 1)
                hit = change.ids[place] == ids
                there[hit], rows[hit] = change.there[place[hit]], change.rows[place[hit]]
            self.moved += rows.nbytes
            return there, rows

    def write(self, version: int, ids: np.ndarray, rows: np.ndarray) -> int:
        """The version with other rows of some clients; numbers that no client has are passed over."""
        inside = (ids >= 0) & (ids < self.clients)
        # the last row of a client that is there twice, in ascending order
        ids, last = np.unique(ids[inside][::-1], return_index=True)
        rows = rows[inside][::-1][last]
        with self._lock:
            later = self._since(version)
            if not len(ids):
                return version
            if later and self._is(later, ids, rows):
                return later[0].after
            self._take_back(later)
            self._newest += 1
            change = Change(self.version, self._newest, ids, *self._current(ids))
            self._put(ids, rows)
            self.version = change.after
            self._remember(change)
            self.moved += rows.nbytes
            return self.version

    def written(self, version: int) -> np.ndarray:
        """The numbers of the clients that have a row in a version, ascending."""
        with self._lock:
            there = self._slots > 0
            for change in reversed(self._since(version)):
                there[change.ids] = change.there
        return np.flatnonzero(there).astype(np.int32)

    def copy(self, version: int, place: Away) -> "RowStore":
        """A store of its own that begins with the rows of a version."""
        new = RowStore(self.clients, self.width, place)
        new.fill((ids, self.read(version, ids)[1]) for ids in new.pieces(self.written(version)))
        return new

    def fill(self, pieces: Any) -> None:
        """Puts the rows that a new store begins with, in pairs of clients and their rows."""
        for ids, rows in pieces:
            self._put(ids, rows)

    def pieces(self, ids: np.ndarray) -> Iterator[np.ndarray]:
        """Some clients, as many at a time as one block has room for."""
        step = max(1, BLOCK // max(self.width, 1))
        return (ids[first : first + step] for first in range(0, len(ids), step))

    def _since(self, version: int) -> list[Change]:
        """The changes after a version, oldest first."""
        if version == self.version:
            return []
        for place, change in enumerate(self._log):
            if change.before == version:
                return self._log[place:]
        hint = f"The last {len(self._log)} writes can be taken back; with Simulation(memory='device') any can."
        raise FedaxError(f"memory of clients in version {version}, which is gone: the newest is {self.version}. {hint}")

    def _is(self, later: list[Change], ids: np.ndarray, rows: np.ndarray) -> bool:
        """Whether the first of some changes was a write of these rows."""
        first, *rest = later
        if not np.array_equal(first.ids, ids):
            return False
        there, now = self._current(ids)
        for change in reversed(rest):
            _, mine, its = np.intersect1d(ids, change.ids, assume_unique=True, return_indices=True)
            there[mine], now[mine] = change.there[its], change.rows[its]
        return bool(there.all()) and np.array_equal(now, rows)

    def _take_back(self, later: list[Change]) -> None:
        for change in reversed(later):
            self._put(change.ids[change.there], change.rows[change.there])
            new = change.ids[~change.there]
            self._free += (self._slots[new] - 1).tolist()
            self._slots[new] = 0
            self._log.pop()
            self._logged -= change.rows.nbytes
            self.version = change.before

    def _current(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slots = self._slots[ids] - 1
        there, rows = slots >= 0, np.empty((len(ids), self.width), np.uint8)
        rows[there] = self._rows.read(slots[there])
        return there, rows

    def _put(self, ids: np.ndarray, rows: np.ndarray) -> None:
        new = ids[self._slots[ids] == 0]
        reused = [self._free.pop() for _ in range(min(len(new), len(self._free)))]
        first, self._used = self._used, self._used + len(new) - len(reused)
        self._slots[new] = np.concatenate([np.array(reused, np.int32), np.arange(first, self._used, dtype=np.int32)]) + 1
        self._rows.write(self._slots[ids] - 1, rows)

    def _remember(self, change: Change) -> None:
        """Keeps a change, in place of the oldest ones where there are enough."""
        self._log.append(change)
        self._logged += change.rows.nbytes
        while len(self._log) > LEAST and self._logged > UNDO:
            self._logged -= self._log.pop(0).rows.nbytes


STORES: Numbered[RowStore] = Numbered()
"""The stores by their numbers."""


class _InBlocks:
    """Rows in memory, in blocks: more of them move none of those that are there."""

    def __init__(self, width: int) -> None:
        self.width, self.per_block = width, max(1, HELD // max(width, 1))
        self.blocks: list[np.ndarray] = []

    def read(self, slots: np.ndarray) -> np.ndarray:
        rows = np.empty((len(slots), self.width), np.uint8)
        for block, places in self._places(slots):
            rows[places] = self.blocks[block][slots[places] - block * self.per_block]
        return rows

    def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
        while len(slots) and slots.max() >= len(self.blocks) * self.per_block:
            self.blocks.append(np.empty((self.per_block, self.width), np.uint8))
        for block, places in self._places(slots):
            self.blocks[block][slots[places] - block * self.per_block] = rows[places]

    def _places(self, slots: np.ndarray) -> Iterator[tuple[int, Any]]:
        """The blocks of some slots, each with the places of its own among them."""
        if len(self.blocks) == 1:
            return iter([(0, slice(None))])
        return _groups(slots // self.per_block)


class _InFile:
    """Rows in a file without a name. What is read is held for a moment, not mapped into memory for good."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="fedax-", buffering=0)  # noqa: SIM115, closed with the rows
        weakref.finalize(self, self.file.close)

    def read(self, slots: np.ndarray) -> np.ndarray:
        rows = np.empty((len(slots), self.width), np.uint8)
        for first, places in _runs(slots):
            piece = np.empty((len(places), self.width), np.uint8)
            self.file.seek(int(first) * self.width)
            _whole(getattr(self.file, "readinto"), piece)  # noqa: B009, typing does not know files without a buffer
            rows[places] = piece
        return rows

    def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
        for first, places in _runs(slots):
            self.file.seek(int(first) * self.width)
            _whole(self.file.write, rows[places])


def _whole(move: Any, piece: np.ndarray) -> None:
    """Reads or writes a piece to its end, in as many turns as the system takes."""
    view, done = np.ascontiguousarray(piece).reshape(-1).data, 0
    while done < len(view):
        moved = move(view[done:])
        if not moved:
            raise OSError("the file of the clients' memory has become shorter")
        done += moved


def _groups(keys: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The places of each value among some keys."""
    order = np.argsort(keys, kind="stable")
    return _cut(keys, order, np.flatnonzero(np.diff(keys[order])))


def _runs(slots: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The places of slots that follow each other, with the first slot of each run."""
    order = np.argsort(slots, kind="stable")
    return _cut(slots, order, np.flatnonzero(np.diff(slots[order]) != 1))


def _cut(keys: np.ndarray, order: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Places in order, cut after some of them, with the first key of each part."""
    edges = [0, *(ends + 1).tolist(), len(order)] if len(order) else []
    return ((int(keys[order[a]]), order[a:b]) for a, b in itertools.pairwise(edges))
