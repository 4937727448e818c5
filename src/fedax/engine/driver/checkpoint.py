"""Checkpoints of a run: written atomically, verified by a checksum, and continued only by the run
that wrote them.
"""

import contextlib
import copy
import dataclasses
import hashlib
import io
import json
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from fedax.core.algorithm import Algorithm
from fedax.core.bound_model import evaluated_state
from fedax.core.federation import is_memory
from fedax.core.history import Best, History, Outcome
from fedax.core.traffic import Traffic
from fedax.core.validation.own_methods import call_model
from fedax.engine.compilation.fingerprint import first_difference
from fedax.engine.distributed.process_group import ProcessGroup
from fedax.engine.driver.resume import CLIENTS, check_clients
from fedax.engine.round.engine import RunCarry
from fedax.errors import InvalidInput, WriteFailed
from fedax.utils.files import write
from fedax.utils.layout import Layout, Vector
from fedax.utils.lock import held

_COURSE = ("rounds", "seconds", "compiling")
"""Arrays of a history with one entry for each observation."""
_HEAD = b"fedax checkpoint 1\n"
_STORED = 2  # the newest, and the one before in case the newest cannot be read


class Checkpoints:
    """The checkpoints of one run, in a folder that holds nothing else.

    A file holds the states and the course of all algorithms of the run after some round, behind a
    SHA-256 sum of it all. It is written whole or not at all, and the one before stays until the
    next is complete. A file that was cut off or altered is passed over with a warning, and the one
    before counts. Of memories outside the device it has the rows that exist, and either place can
    continue what the other began; a file passes through memory as a whole.

    Of several ranks only rank 0 sees the folder. It stores the memories of all clients, as an
    engine of one process does, so either can continue what the other began.

    Args:
        folder: made if it does not exist.
        every: rounds between checkpoints, at least 1.
        identity: what makes the run what it is; see `fedax.engine.compilation.fingerprint`.
        group: the ranks, all of which call every method.
        seconds: the most time between checkpoints if that is shorter than `every` rounds; None for
            no bound. The first one is made after the first round, and the time between them doubles
            until it is `seconds`.

    Raises:
        InvalidInput: a folder that cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        every: int,
        identity: dict[str, Any],
        group: ProcessGroup | None = None,
        seconds: float | None = None,
    ) -> None:
        self.folder, self.every, self.identity = folder, every, json.loads(json.dumps(identity))
        self.process_group, self.seconds = group or ProcessGroup(), seconds
        self._begun = self._saved = time.monotonic()
        with self.process_group.raise_on_all_ranks():
            if self.process_group.rank == 0:
                self._prepare()

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            allowed = "folders that can be written"
            raise InvalidInput.of(
                "run(checkpoint=...)", str(self.folder), allowed, error.strerror or ""
            ) from error

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes out of the folder.

        Raises:
            RunExists: another process works in it; the message says which, where and since when.
        """
        with contextlib.ExitStack() as stack:
            with self.process_group.raise_on_all_ranks():
                if self.process_group.rank == 0:
                    stack.enter_context(held(self.folder))
                    # of a process that was killed while it wrote
                    for partial_file in self.folder.glob(".round-*"):
                        partial_file.unlink()
            yield

    def is_due(self) -> bool:
        """Returns whether a checkpoint is due by the time since the last one."""
        if self.seconds is None:
            return False
        return time.monotonic() - self._saved >= min(self.seconds, self._saved - self._begun)

    def save(
        self, done: int, histories: Sequence[History], ended: Sequence[bool], layout: Layout
    ) -> None:
        """Writes the run after `done` rounds.

        Args:
            done: rounds completed.
            histories: of its members.
            ended: which of them are complete. A member that became non-finite since the last
                observation is not yet.
            layout: of its parameters.

        Raises:
            WriteFailed: a full disk, for example; the checkpoints there were are untouched.
        """
        with self.process_group.raise_on_all_ranks():
            if self.process_group.rank == 0:
                self._write(done, histories, ended, layout)
        self._saved = time.monotonic()

    def _write(
        self, done: int, histories: Sequence[History], ended: Sequence[bool], layout: Layout
    ) -> None:
        # zero-padded, so that names sort by round
        path = self.folder / f"round-{done:09d}"
        try:
            write(path, _to_bytes(self.identity, done, histories, ended, layout))
            for old_file in self._list_files()[_STORED:]:
                old_file.unlink()
        except OSError as error:
            files = self._list_files()
            hint = (
                f"The checkpoint of round {_round_number(files[0])} is whole"
                if files
                else "There is none before"
            )
            reason = error.strerror or error
            message = (
                f"checkpoint of round {done} in {self.folder}: cannot be written: {reason}. {hint}."
            )
            raise WriteFailed(message) from error

    def load(
        self,
        states: Sequence[RunCarry],
        algorithms: Sequence[Algorithm[Any]],
        layout: Layout,
        rounds: int,
        to_params: Callable[[Vector], PyTree],
    ) -> list[tuple[History, bool]] | None:
        """Returns the histories of the newest checkpoint that can be read, each with whether it is
        complete, or None.

        Args:
            states: what the runs carry at any round, for their structure.
            algorithms: of the run.
            layout: of its parameters.
            rounds: of the whole run.
            to_params: makes the user's pytree of a flat model.

        Raises:
            InvalidInput: the folder holds checkpoints of another run, or of later rounds.
        """
        # rank 0 reads the file; the others get what they need of it below
        newest = None
        with self.process_group.raise_on_all_ranks():
            if self.process_group.rank == 0:
                newest = self._read_newest(rounds)
        meta, arrays = newest or (None, {})
        if (meta := self.process_group.broadcast(meta)) is None:
            return None
        rows = self.process_group.broadcast(_names_of_client_rows(states, arrays))
        arrays = self.process_group.scatter(arrays, rows)
        runs = zip(states, algorithms, meta["members"], strict=True)
        histories = [
            _restore_history(m, i, arrays, state, a, layout, to_params)
            for i, (state, a, m) in enumerate(runs)
        ]
        return [
            (history, member["ended"])
            for history, member in zip(histories, meta["members"], strict=True)
        ]

    def _read_newest(self, rounds: int) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """Returns metadata and arrays of the newest checkpoint that can be read."""
        for path in self._list_files():
            try:
                meta, arrays = _from_bytes(path.read_bytes())
            except (OSError, ValueError, KeyError) as error:
                warnings.warn(f"{path}: passed over, it is damaged ({error}).", stacklevel=2)
                continue
            self._check_identity(meta["identity"])
            if meta["done"] > rounds:
                allowed = f"whole numbers >= {meta['done']}, the rounds done in {self.folder}"
                raise InvalidInput.of("run(rounds=...)", rounds, allowed)
            return meta, arrays
        return None

    def _check_identity(self, stored: dict[str, Any]) -> None:
        identity = copy.deepcopy(self.identity)
        for facts in (identity, stored):
            _drop_budgets(facts)
        clients, stored_clients = identity.pop(CLIENTS, {}), stored.pop(CLIENTS, {})
        if difference := first_difference(identity, stored):
            name, current, previous = difference
            hint = (
                f"{self.folder} holds checkpoints of a run with {previous!r}. Choose another folder"
            )
            setting = name.removeprefix("random.").upper()
            hint += (
                f", or start Python with {setting}={previous}."
                if name.startswith("random.")
                else "."
            )
            raise InvalidInput.of(
                f"run(checkpoint=...), {name}", current, "the same run as before", hint
            )
        check_clients("run(checkpoint=...)", clients, stored_clients)

    def _list_files(self) -> list[Path]:
        """Returns the files, newest first."""
        return sorted(
            (p for p in self.folder.glob("round-*") if re.fullmatch(r"round-\d{9}", p.name)),
            reverse=True,
        )


def _drop_budgets(identity: dict[str, Any]) -> None:
    """Removes budgets from an identity: they say when a run ends, not what its rounds do."""
    identity.pop("budget", None)
    privacy = (identity.get("channel") or {}).get("privacy")
    if privacy is not None:
        privacy.pop("budget", None)


def _number_nodes(carry: RunCarry) -> list[tuple[int, Any]]:
    """Returns arrays and memories of a carry, each with the number of its first array.

    A memory has one for each leaf of a row.
    """
    # by number, because the states of algorithms are pytrees without names
    numbered, k = [], 0
    for node in jax.tree.leaves(carry, is_leaf=is_memory):
        if is_memory(node) or eqx.is_array(node):
            numbered.append((k, node))
            k += node.arrays if is_memory(node) else 1
    return numbered


def _names_of_client_rows(states: Sequence[RunCarry], arrays: Collection[str]) -> set[str]:
    """Returns the names of arrays that have a row for every client.

    Arrays of some clients have their numbers stored beside.
    """
    names: set[str] = set()
    for i, carry in enumerate(states):
        for k, node in _number_nodes(carry):
            if is_memory(node) and f"{i}/clients/{k}" not in arrays:
                names |= {f"{i}/state/{j}" for j in range(k, k + node.arrays)}
    return names


def _round_number(path: Path) -> int:
    return int(path.name.removeprefix("round-"))


def _to_bytes(
    identity: dict[str, Any],
    done: int,
    histories: Sequence[History],
    ended: Sequence[bool],
    layout: Layout,
) -> bytes:
    arrays: dict[str, np.ndarray] = {}
    members = []
    for i, (history, is_complete) in enumerate(zip(histories, ended, strict=True)):
        arrays |= {
            f"{i}/{name}": _to_storable(np.asarray(values))
            for name, values in _arrays_of(history, layout).items()
        }
        best = history.best and {
            name: getattr(history.best, name) for name in ("metric", "round", "value")
        }
        members.append(
            {
                "algorithm": history.algorithm,
                "outcome": dataclasses.asdict(history.outcome),
                "best": best,
                "ended": is_complete,
                "origin": history.origin,
            }
        )
    arrays["meta"] = np.array(json.dumps({"identity": identity, "done": done, "members": members}))
    buffer = io.BytesIO()
    save: Callable[..., None] = np.savez
    save(buffer, **arrays)
    # the checksum stands in front, so that a file that was cut off is noticed before it is parsed
    body = buffer.getvalue()
    return _HEAD + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _arrays_of(history: History, layout: Layout) -> dict[str, Any]:
    """Returns the arrays of a history by name, as `_restore_history` reads them."""
    arrays: dict[str, Any] = {name: getattr(history, name) for name in _COURSE}
    arrays |= {"down": history.bits.down, "up": history.bits.up}
    arrays |= {f"metrics/{name}": values for name, values in history.metrics.items()}
    arrays |= {f"notes/{name}": values for name, values in history.notes.items()}
    for k, node in _number_nodes(RunCarry.of(history)):
        ids, leaves = node.written() if is_memory(node) else (None, [node])
        arrays |= {f"state/{k + j}": leaf for j, leaf in enumerate(leaves)}
        if ids is not None:  # of the clients that have rows; otherwise all clients have one
            arrays[f"clients/{k}"] = ids
    if history.best is not None:
        arrays["best"] = layout.ravel(_without_frozen(history.best.params, layout))
        arrays |= {
            f"best state/{k}": leaf for k, leaf in enumerate(jax.tree.leaves(history.best.state))
        }
    return arrays


def _without_frozen(params: PyTree, layout: Layout) -> PyTree:
    """Returns a model with None in the place of leaves that the layout does not have."""
    return jax.tree.map(
        lambda trained, leaf: None if trained is None else leaf,
        layout.form,
        params,
        is_leaf=lambda node: node is None,
    )


def _to_storable(values: np.ndarray) -> np.ndarray:
    """Returns the array, or its bytes if NumPy's files do not know the type, such as bfloat16."""
    return values.view(np.uint8) if values.dtype.kind == "V" else values


def _from_bytes(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if not content.startswith(_HEAD):
        raise ValueError("not a checkpoint of this version")
    checksum, _, body = content[len(_HEAD) :].partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise ValueError("its checksum does not fit")
    with np.load(io.BytesIO(body), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return json.loads(str(arrays.pop("meta"))), arrays


def _restore_history(
    meta: dict[str, Any],
    i: int,
    arrays: dict[str, np.ndarray],
    carry: RunCarry,
    algorithm: Algorithm[Any],
    layout: Layout,
    to_params: Callable[[Vector], PyTree],
) -> History:
    def select_arrays(kind: str) -> dict[str, np.ndarray]:
        prefix = f"{i}/{kind}/"
        return {
            name.removeprefix(prefix): values
            for name, values in arrays.items()
            if name.startswith(prefix)
        }

    stored, clients = select_arrays("state"), select_arrays("clients")
    numbered = iter(_number_nodes(carry))

    def restore_node(node: Any) -> Any:
        if not (is_memory(node) or eqx.is_array(node)):
            return node
        k, _ = next(numbered)
        if is_memory(node):
            return node.restored(
                clients.get(str(k)), [stored[str(j)] for j in range(k, k + node.arrays)]
            )
        return _array_like(node, np.asarray(stored[str(k)]))

    carry = jax.tree.map(restore_node, carry, is_leaf=is_memory)
    params, best = to_params(call_model(algorithm, carry.state, layout.dim)), None
    if meta["best"]:
        w = jax.numpy.asarray(arrays[f"{i}/best"].view(jax.numpy.dtype(layout.dtype)))
        best = Best(**meta["best"], params=to_params(w))
        if best_state := select_arrays("best state"):
            leaves, structure = jax.tree.flatten(evaluated_state(carry.model_state))
            state = [_array_like(leaf, best_state[str(k)]) for k, leaf in enumerate(leaves)]
            best = dataclasses.replace(best, state=jax.tree.unflatten(structure, state))
    return History(
        meta["algorithm"],
        metrics=select_arrays("metrics"),
        notes=select_arrays("notes"),
        params=params,
        bits=Traffic(arrays[f"{i}/down"], arrays[f"{i}/up"]),
        outcome=Outcome(**meta["outcome"]),
        best=best,
        origin=meta["origin"],
        **{name: arrays[f"{i}/{name}"] for name in _COURSE},
        **carry._asdict(),
    )


def _array_like(leaf: Any, stored: np.ndarray) -> jax.Array:
    """Returns a stored array on the device, in the type and shape of another one.

    Its first axis may have another length: stored downlinks of an asynchronous server have as many
    slots as the rounds need.
    """
    values = stored.view(leaf.dtype)
    return jax.numpy.asarray(
        values.reshape(leaf.shape if values.size == leaf.size else (-1, *leaf.shape[1:]))
    )
