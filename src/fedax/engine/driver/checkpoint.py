"""Checkpoints: the histories of a program's runs after some rounds, in one file of safetensors."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.core.carry import RunCarry
from fedax.core.federation import is_states
from fedax.core.history import Best, History, Outcome, RunDetails
from fedax.core.traffic import Traffic
from fedax.engine.compilation.identity import Identity, as_numpy, check_same, hash_arrays, is_key
from fedax.engine.driver.grid import Grid
from fedax.errors import InvalidInput
from fedax.models.storage import read_weights, to_bytes
from fedax.utils.files import write
from fedax.utils.lock import held

_STORED = 2  # the newest, and the one before in case a disk loses the newest
_FIELDS = ("rounds", "seconds", "metrics", "logged")
"""Of a history, what a file holds as it is."""
_ROWS = "rows "
"""Begins the names of arrays with a row for every client, of which a rank gets its own."""


class Checkpoints:
    """The checkpoints of the runs of a program, in a folder that holds nothing else.

    A file holds the histories of all runs, with what they carry from round to round. Facts that
    are no arrays stand in its head as JSON, with a checksum. It is written whole or not at all, and
    the one before stays. Of clients' states outside the device it has the rows that exist, and
    either place can continue what the other began.

    Of several ranks only rank 0 sees the folder. It stores the states of all clients, as an engine
    of one process does, so either can continue what the other began.

    Args:
        grid: the runs. All ranks call every method.

    """

    def __init__(self, grid: Grid) -> None:
        options = grid.options
        self.grid = grid
        self.process_group = options.engine.process_group
        self.folder = Path(options.checkpoint or "").expanduser()
        self.identity: Identity = grid.identity()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes out of the folder.

        Raises:
            RunExists: another process works in it.
        """
        with contextlib.ExitStack() as stack:
            with self.process_group.raise_on_all_ranks():
                if self.process_group.rank == 0:
                    stack.enter_context(held(self.folder))
                    # of a process that was killed while it wrote
                    for partial_file in self.folder.glob(".round-*"):
                        partial_file.unlink()
            yield

    def check_empty(self) -> None:
        """Refuses a folder with checkpoints, which a continued history would overwrite."""
        with self.process_group.raise_on_all_ranks():
            if self.process_group.rank == 0 and self._list_files():
                hint = "Choose another folder, or leave out resume."
                allowed = "a folder without checkpoints beside resume"
                raise InvalidInput.of("run(checkpoint=...)", str(self.folder), allowed, hint)

    def save(self, done: int, histories: Sequence[History]) -> None:
        """Writes the histories of the runs after `done` rounds.

        Raises:
            WriteFailed: a full disk, for example; the checkpoints there were are untouched.
        """
        # ranks gather what clients store, before the block that must not communicate
        head, arrays = self._collect(histories)
        with self.process_group.raise_on_all_ranks():
            if self.process_group.rank == 0:
                content = to_bytes(arrays, {"head": head, "checksum": _checksum(head, arrays)})
                # zero-padded, so that names sort by round
                write(self.folder / f"round-{done:09d}", content)
                for old_file in self._list_files()[_STORED:]:
                    old_file.unlink()

    def _collect(self, histories: Sequence[History]) -> tuple[str, dict[str, np.ndarray]]:
        """Returns the head and the arrays of a file."""
        arrays: dict[str, np.ndarray] = {}

        def store(value: Any) -> dict[str, Any]:
            """Returns what stands in the head for arrays and clients' states."""
            if is_states(value):
                ids, rows = value.written()
                kind = _ROWS if ids is None else ""
                return {"ids": ids, "rows": [store_array(row, kind) for row in rows]}
            return store_array(value)

        def store_array(value: Any, kind: str = "") -> dict[str, str]:
            name = f"{kind}{len(arrays)}"
            arrays[name] = as_numpy(value)
            return {"": name}

        runs = [_to_plain(history, self.grid) for history in histories]
        head = json.dumps({"identity": self.identity, "runs": runs}, default=store)
        return head, arrays

    def load(self, carries: Sequence[RunCarry]) -> list[History]:
        """Returns the histories of the newest checkpoint; empty if there is none.

        Args:
            carries: what the runs carry at any round, for their structure.

        Raises:
            InvalidInput: the folder holds checkpoints of another run, or the newest is damaged.
        """
        # rank 0 reads the file; the others get what they need of it below
        head = ""
        arrays: dict[str, np.ndarray] = {}
        with self.process_group.raise_on_all_ranks():
            if self.process_group.rank == 0 and (files := self._list_files()):
                arrays, about = read_weights(files[0])
                head = about["head"]
                if _checksum(head, arrays) != about["checksum"]:
                    reason = "it is damaged: its checksum does not fit"
                    hint = "The one before it continues."
                    raise InvalidInput.because(str(files[0]), reason, hint)
                stored = json.loads(head)["identity"]
                check_same(self.identity, stored, "run(checkpoint=...)")
        if not (head := self.process_group.broadcast(head)):
            return []
        # one by one, so that no rank but rank 0 holds the states of all clients
        for name in self.process_group.broadcast([*arrays]):
            array = self.process_group.broadcast(arrays.get(name))
            if name.startswith(_ROWS):
                array = self.process_group.own_rows(array)
            arrays[name] = array
        runs = json.loads(head, object_hook=lambda d: arrays[d[""]] if "" in d else d)
        return [
            _to_history(run, carry, self.grid)
            for run, carry in zip(runs["runs"], carries, strict=True)
        ]

    def _list_files(self) -> list[Path]:
        """Returns the files, newest first."""
        return sorted(self.folder.glob("round-" + 9 * "[0-9]"), reverse=True)


def _checksum(head: str, arrays: dict[str, np.ndarray]) -> str:
    return hash_arrays((np.frombuffer(head.encode(), np.uint8), arrays))


def _to_plain(history: History, grid: Grid) -> dict[str, Any]:
    """Returns what a run continues from as plain values, arrays and clients' states."""
    best = history.best
    fields = {name: getattr(history, name) for name in _FIELDS}
    return fields | {
        "bits": [history.bits.down, history.bits.up],
        "outcome": dataclasses.asdict(history.outcome),
        "best": best and {name: getattr(best, name) for name in ("metric", "round", "value")},
        "best_model": best and [grid.flat(best.params), *_arrays_of(best.state)],
        "carry": _arrays_of(history.carry),
    }


def _to_history(run: dict[str, Any], carry: RunCarry, grid: Grid) -> History:
    """Inverts `_to_plain`, with the structure of a carry."""
    best = None
    if run["best"]:
        w, *state = run["best_model"]
        params = grid.to_params(jnp.asarray(w, grid.layout.dtype))
        state = _restore(grid.evaluated_state(carry), state)
        best = Best(**run["best"], params=params, state=state)
    return History(
        params=None,
        bits=Traffic(*run["bits"]),
        outcome=Outcome(**run["outcome"]),
        best=best,
        **{name: run[name] for name in _FIELDS},
        carry=_restore(carry, run["carry"]),
        details=RunDetails(),
    )


def _arrays_of(tree: Any) -> list[Any]:
    """Returns the arrays and the clients' states of a pytree, in order."""
    nodes = jax.tree.leaves(tree, is_leaf=is_states)
    return [node for node in nodes if is_states(node) or eqx.is_array(node)]


def _restore(tree: Any, stored: Sequence[Any]) -> Any:
    """Returns a pytree with what `_arrays_of` gave of one of its structure."""
    remaining = iter(stored)

    def restore(node: Any) -> Any:
        if is_states(node):
            return node.restored(**next(remaining))
        if is_key(node):
            return jax.random.wrap_key_data(next(remaining), impl=jax.random.key_impl(node))
        return jnp.asarray(next(remaining), node.dtype) if eqx.is_array(node) else node

    return jax.tree.map(restore, tree, is_leaf=is_states)
