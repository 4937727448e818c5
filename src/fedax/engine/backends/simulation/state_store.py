"""Store of clients' rows outside the devices, sparse and versioned, in host memory or in a file.

A compiled program may execute a host callback more than once, or not at all, so reads and writes
have to look pure. The store therefore keeps a short undo log: earlier versions stay readable, and a
repeated write returns the version that it made before.
"""

import tempfile
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedax.engine.backends.simulation.host_callback import HandleRegistry
from fedax.errors import FedaxError

OffloadPlacement: TypeAlias = Literal["host", "disk"]
"""Where rows outside the devices are stored."""
BLOCK_BYTES, GROWTH_BYTES = 1 << 22, 1 << 26
"""Bytes of rows copied at a time, and the most bytes by which host memory grows at a time."""
MIN_UNDO_WRITES, UNDO_BYTES = 4, 1 << 24
"""Writes that can be undone: at least so many, and more while their rows take at most so many
bytes."""


class Change(NamedTuple):
    """A write: the versions before and after it, and the rows that it replaced.

    `there` marks the clients that had a row before; `rows` has shape (clients, bytes), undefined
    for the others.
    """

    before: int
    after: int
    ids: np.ndarray
    there: np.ndarray
    rows: np.ndarray


class ClientStateStore:
    """Versioned rows of bytes by client id. A row exists once it has been written.

    A write makes a new version and leaves earlier ones readable, as far as `MIN_UNDO_WRITES` and
    `UNDO_BYTES` reach. A write to an older version undoes the later ones. A write that was made
    before is recognized and returns the same version.

    Args:
        clients: number of clients of the population.
        width: bytes of a row.
        placement: `"host"` for the process's memory, `"disk"` for an unnamed temporary file, which
            ends with the store or the process.

    Attributes:
        number: handle by which compiled programs know the store.
        version: the newest version.
        moved: bytes of rows read and written by programs so far.
    """

    def __init__(self, clients: int, width: int, placement: OffloadPlacement) -> None:
        self.clients, self.width = clients, width
        self.placement: OffloadPlacement = placement
        self.version, self.moved, self._newest = 0, 0, 0
        # slot + 1, or 0 for no row: pages of untouched zeros take no memory
        self._slots = np.zeros(clients, np.int32)
        self._rows = _FileRows(width) if placement == "disk" else _MemoryRows(width)
        self._free: list[int] = []
        self._used = 0
        self._log: list[Change] = []
        self._logged = 0
        self._lock = threading.Lock()
        self.number = STORES.add(self)

    def __len__(self) -> int:
        """Returns the number of rows that exist."""
        return self._used - len(self._free)

    def check(self, version: int) -> None:
        """Raises if a version cannot be read.

        Raises:
            FedaxError: the version does not exist or has been dropped.
        """
        with self._lock:
            self._changes_after(version)

    def read(self, version: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns which clients have a row in a version, and the rows (undefined for others)."""
        ids = np.clip(ids, 0, self.clients - 1)
        with self._lock:
            later = self._changes_after(version)
            exists, rows = self._read_current(ids)
            # the newest rows, with those restored that later writes have replaced
            for change in reversed(later):
                index = np.minimum(np.searchsorted(change.ids, ids), len(change.ids) - 1)
                matches = change.ids[index] == ids
                exists[matches], rows[matches] = (
                    change.there[index[matches]],
                    change.rows[index[matches]],
                )
            self.moved += rows.nbytes
            return exists, rows

    def write(self, version: int, ids: np.ndarray, rows: np.ndarray) -> int:
        """Writes rows onto a version and returns the new version. Ids out of range are ignored."""
        inside = (ids >= 0) & (ids < self.clients)
        # ascending ids; if an id occurs twice, its last row counts
        ids, last_index = np.unique(ids[inside][::-1], return_index=True)
        rows = rows[inside][::-1][last_index]
        with self._lock:
            later = self._changes_after(version)
            if not len(ids):
                return version
            # a program on several devices makes each call once a device
            if later and self._repeats_write(later, ids, rows):
                return later[0].after
            self._undo(later)
            self._newest += 1
            change = Change(self.version, self._newest, ids, *self._read_current(ids))
            self._put(ids, rows)
            self.version = change.after
            self._log_change(change)
            self.moved += rows.nbytes
            return self.version

    def written_ids(self, version: int) -> np.ndarray:
        """Returns the ids of the clients that have a row in a version, ascending."""
        with self._lock:
            exists = self._slots > 0
            for change in reversed(self._changes_after(version)):
                exists[change.ids] = change.there
        return np.flatnonzero(exists).astype(np.int32)

    def copy(self, version: int, placement: OffloadPlacement) -> "ClientStateStore":
        """Returns a new store with the rows of a version."""
        store = ClientStateStore(self.clients, self.width, placement)
        store.fill(
            (ids, self.read(version, ids)[1])
            for ids in store.split_blocks(self.written_ids(version))
        )
        return store

    def fill(self, blocks: Any) -> None:
        """Fills a new store with blocks of ids and rows."""
        for ids, rows in blocks:
            self._put(ids, rows)

    def split_blocks(self, ids: np.ndarray) -> Iterator[np.ndarray]:
        """Splits ids so that the rows of each part fit into `BLOCK_BYTES`."""
        step = max(1, BLOCK_BYTES // max(self.width, 1))
        return (ids[first : first + step] for first in range(0, len(ids), step))

    def _changes_after(self, version: int) -> list[Change]:
        """Returns the changes after a version, oldest first."""
        if version == self.version:
            return []
        for index, change in enumerate(self._log):
            if change.before == version:
                return self._log[index:]
        hint = (
            f"The last {len(self._log)} writes can be taken back; with "
            "Simulation(memory='device') any can."
        )
        raise FedaxError(
            f"memory of clients in version {version}, which is gone: the newest is "
            f"{self.version}. {hint}"
        )

    def _repeats_write(self, later: list[Change], ids: np.ndarray, rows: np.ndarray) -> bool:
        """Returns whether the first of some changes was a write of these rows."""
        oldest, *newer = later
        if not np.array_equal(oldest.ids, ids):
            return False
        exists, current_rows = self._read_current(ids)
        for change in reversed(newer):
            _, own_index, change_index = np.intersect1d(
                ids, change.ids, assume_unique=True, return_indices=True
            )
            exists[own_index], current_rows[own_index] = (
                change.there[change_index],
                change.rows[change_index],
            )
        return bool(exists.all()) and np.array_equal(current_rows, rows)

    def _undo(self, later: list[Change]) -> None:
        for change in reversed(later):
            self._put(change.ids[change.there], change.rows[change.there])
            created_ids = change.ids[~change.there]
            self._free += (self._slots[created_ids] - 1).tolist()
            self._slots[created_ids] = 0
            self._log.pop()
            self._logged -= change.rows.nbytes
            self.version = change.before

    def _read_current(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slots = self._slots[ids] - 1
        exists, rows = slots >= 0, np.empty((len(ids), self.width), np.uint8)
        rows[exists] = self._rows.read(slots[exists])
        return exists, rows

    def _put(self, ids: np.ndarray, rows: np.ndarray) -> None:
        new_ids = ids[self._slots[ids] == 0]
        reused = [self._free.pop() for _ in range(min(len(new_ids), len(self._free)))]
        first, self._used = self._used, self._used + len(new_ids) - len(reused)
        self._slots[new_ids] = (
            np.concatenate(
                [np.array(reused, np.int32), np.arange(first, self._used, dtype=np.int32)]
            )
            + 1
        )
        self._rows.write(self._slots[ids] - 1, rows)

    def _log_change(self, change: Change) -> None:
        """Appends a change to the undo log, and drops the oldest ones beyond its limits."""
        self._log.append(change)
        self._logged += change.rows.nbytes
        while len(self._log) > MIN_UNDO_WRITES and self._logged > UNDO_BYTES:
            self._logged -= self._log.pop(0).rows.nbytes


STORES: HandleRegistry[ClientStateStore] = HandleRegistry()
"""All stores by handle."""


class _MemoryRows:
    """Rows in memory, as one array that grows in place."""

    def __init__(self, width: int) -> None:
        self.rows = np.empty((0, width), np.uint8)
        self.growth = max(1, GROWTH_BYTES // max(width, 1))

    def read(self, slots: np.ndarray) -> np.ndarray:
        return self.rows[slots]

    def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
        length, needed = len(self.rows), int(slots.max(initial=-1)) + 1
        if needed > length:
            # The system moves the pages of a large array, so that growing copies no rows. No view
            # of the array exists outside of this class, which `refcheck` would look for.
            larger = max(needed, length + min(max(length, 16), self.growth))
            self.rows.resize((larger, self.rows.shape[1]), refcheck=False)
        self.rows[slots] = rows


class _FileRows:
    """Rows in an unnamed file.

    Rows are read, not memory-mapped, so that they do not stay in the process's memory.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.file = tempfile.TemporaryFile(prefix="fedax-")  # noqa: SIM115, closed with the rows
        weakref.finalize(self, self.file.close)

    def read(self, slots: np.ndarray) -> np.ndarray:
        rows = np.empty((len(slots), self.width), np.uint8)
        for first, positions in _contiguous_runs(slots):
            self.file.seek(first * self.width)
            run = self.file.read(len(positions) * self.width)
            rows[positions] = np.frombuffer(run, np.uint8).reshape(len(positions), self.width)
        return rows

    def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
        for first, positions in _contiguous_runs(slots):
            self.file.seek(first * self.width)
            self.file.write(rows[positions].data)


def _contiguous_runs(slots: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields runs of consecutive slots: the first slot, and the positions of all."""
    if len(slots):
        order = np.argsort(slots, kind="stable")
        for positions in np.split(order, np.flatnonzero(np.diff(slots[order]) != 1) + 1):
            yield int(slots[positions[0]]), positions
