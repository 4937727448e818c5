"""Continuing histories in memory by the same method, seed, data and privacy, so that the account
holds for all rounds.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.communication.channel import Channel, Codec
from fedax.core.algorithm import Algorithm
from fedax.core.client import Solver
from fedax.core.federation import HiddenMemory, is_memory
from fedax.core.history import History
from fedax.core.hyper import as_arrays
from fedax.core.scheduling.schedule import Schedule
from fedax.core.task import Task
from fedax.engine.compilation.fingerprint import Fingerprinter, first_difference, hash_arrays
from fedax.errors import InvalidInput, shown
from fedax.utils.layout import Layout

_PARTS, _PART = 16, 1 << 16
"""Blocks of a large array that its fingerprint looks at, and the bytes of each."""
CLIENTS = "clients elsewhere"
"""The part of a run's identity and origin with the examples of clients that are not in this
process."""


def origin(
    algorithm: Algorithm[Any],
    data: dict[str, Any] | None,
    seed: int,
    layout: Layout,
    schedule: Schedule,
    channel: Channel | None,
) -> dict[str, Any]:
    """Returns what a history continues from, see `History.origin`.

    The schedule counts with privacy, because epsilon depends on it. A budget does not: it says when
    to stop, not what was spent.

    Args:
        algorithm: as it was asked for.
        data: from `data_of`; None where the examples are elsewhere.
        seed: of the run.
        layout: of the model.
        schedule: of the run.
        channel: of the run.
    """
    privacy, codec = (None, None) if channel is None else (channel.privacy, channel.up)
    vector = jax.ShapeDtypeStruct((layout.dim,), layout.dtype)
    describe = Fingerprinter((layout.form, vector))
    try:
        method = describe(as_arrays(algorithm, layout.dtype), "algorithm")
    except InvalidInput:  # a field that cannot be compared
        method = {"kind": type(algorithm).__name__}
    account = None
    if privacy is not None:
        fields = {field.name: getattr(privacy, field.name) for field in dataclasses.fields(privacy)}
        account = {
            name: describe(value, name) for name, value in fields.items() if name != "budget"
        }
        account |= {"schedule": describe(schedule, "schedule")}
    model = [str(layout.treedef), [list(shape) for shape in layout.shapes], str(layout.dtype)]
    facts = {"privacy": account, "method": method, "model": model, "seed": seed, "data": data}
    return facts | {"memory": _memory_of(codec), "server": _server_of(schedule, describe)}


def _memory_of(codec: Codec | None) -> str | None:
    """Returns what the clients store for a codec, in words; None if nothing."""
    if codec is None or not codec.has_memory:
        return None
    # residuals mean the same with every codec
    is_residual = type(codec).message_and_memory is Codec.message_and_memory
    return "what messages lost" if is_residual else f"the memory of {type(codec).__name__}"


def _server_of(schedule: Schedule, describe: Fingerprinter) -> Any:
    """Returns what the arrivals at an asynchronous server depend on; None without one, or if it
    cannot be compared.
    """
    if schedule.server is None:
        return None
    try:
        return describe(schedule, "schedule")
    except InvalidInput:
        return None


def check_solver_states(histories: Sequence[History], solver: Solver, layout: Layout) -> None:
    """Refuses histories whose clients store something else than this solver does.

    Raises:
        InvalidInput: a solver with another `keep`, or with another state.
    """
    expected = solver.initial_state(layout.unravel(jnp.zeros(layout.dim, layout.dtype)))
    for history in histories:
        stored = history.solver_states
        if stored is not None and stored.in_process:
            stored = stored.of(0)
        if jax.tree.structure(stored) != jax.tree.structure(expected):
            got = (
                f"{'no state' if expected is None else 'a state'} of the solver to keep, and "
                "another one in the history"
            )
            raise InvalidInput.found(
                "run(resume=..., solver=...)", got, "the solver of the history, with its keep"
            )


def data_of(task: Task, is_private: bool) -> dict[str, Any]:
    """Returns the sizes and a hash of the training data, and one of the frozen leaves.

    With privacy without the hash, by which two populations could be told apart.
    """
    sizes = {"clients": task.train.clients, "examples": task.train.total}
    if is_private:
        return sizes
    # beside arrays, modules hold functions and settings
    frozen = fingerprint(eqx.filter(task.frozen, eqx.is_array_like))
    return sizes | {"content": fingerprint(task.train), "frozen": frozen}


def fingerprint(tree: Any) -> str:
    """Returns a hash of all arrays of a pytree, and of parts of large ones.

    Hashing 100 MB would take as long as a short run.
    """
    return hash_arrays(jax.tree.map(_sample_blocks, tree))


def _sample_blocks(leaf: Any) -> Any:
    # of data on the devices of other hosts only the type counts
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return np.zeros(0, leaf.dtype)
    array = leaf if isinstance(leaf, np.memmap) else np.asarray(leaf)
    if array.nbytes <= _PARTS * _PART:
        return array
    # whole blocks, because reading scattered numbers of a file would read all of its pages
    flat = array.reshape(-1)
    length = max(_PART // array.itemsize, 1)
    starts = np.linspace(0, flat.size - length, _PARTS).astype(int)
    return np.concatenate([flat[start : start + length] for start in starts])


def check_resumed(
    histories: Sequence[History], origins: Sequence[dict[str, Any]], is_private: bool, rounds: int
) -> None:
    """Refuses histories of other runs, and those that have more rounds than the run.

    Their states do not fit, and the privacy that was spent in them would not be counted.

    Args:
        histories: to continue.
        origins: of the runs that continue them, see `origin`.
        is_private: whether these runs have an account of privacy.
        rounds: of the runs that continue them.

    Raises:
        InvalidInput: another number of histories, privacy, method, model, seed or data, clients
            with other numbers of examples, fewer rounds than a history has.
    """
    if len(histories) != len(origins):
        allowed = f"as many as there are runs, {len(origins)}"
        raise InvalidInput.found("run_grid(resume=...)", f"{len(histories)} histories", allowed)
    done = max((len(history.bits.up) for history in histories), default=0)
    if rounds < done:
        allowed = f"whole numbers >= {done}, the rounds of the history that is continued"
        raise InvalidInput.of("run(rounds=...)", rounds, allowed)
    for history, expected in zip(histories, origins, strict=True):
        stored = history.state, history.lost, history.model_state, history.solver_states
        if any(
            isinstance(leaf, HiddenMemory) for leaf in jax.tree.leaves(stored, is_leaf=is_memory)
        ):
            reason = "a history with privacy has nothing of what its clients store"
            raise InvalidInput.because("run(resume=...)", reason, "Continue from a checkpoint.")
        recorded = history.origin
        if recorded is None:
            if is_private:
                reason = "a history that does not say with what privacy it was made"
                raise InvalidInput.because("run(resume=...)", reason, "Start anew.")
            continue
        for name in expected:
            if name == CLIENTS:
                check_clients("run(resume=...)", expected[name], recorded.get(name, {}))
                continue
            # of an engine whose examples are elsewhere
            if name == "data" and None in (expected[name], recorded[name]):
                continue
            # stored memories and downlinks that the run does not use do no harm
            if name in ("memory", "server") and (expected[name] is None or name not in recorded):
                continue
            if difference := first_difference(expected[name], recorded[name], name):
                _refuse(*difference)


def check_clients(field: str, current: dict[str, str], recorded: dict[str, str]) -> None:
    """Refuses clients elsewhere that have other examples than in the rounds before.

    Args:
        field: that is refused.
        current: from `Engine.describe_clients`.
        recorded: the same of the rounds before; empty if they did not record it.

    Raises:
        InvalidInput: a client with another number of examples, another number of clients.
    """
    if not current or not recorded:
        return
    if len(current) != len(recorded):
        allowed = f"{len(recorded)}, as in the rounds before"
        raise InvalidInput.found(field, f"{len(current)} clients", allowed)
    for client, examples in current.items():
        if examples != recorded[client]:
            reason = f"{client} comes back with {examples}, it had {recorded[client]}"
            raise InvalidInput.because(field, reason, "Start it with its earlier examples.")


def check_lengths(field: str, histories: Sequence[History], ended: Sequence[bool]) -> None:
    """Refuses histories of different lengths, whose rounds one program cannot go on with.

    Args:
        field: that is refused.
        histories: to continue.
        ended: which of them have ended by themselves; their lengths do not count.

    Raises:
        InvalidInput: two that go on have different numbers of rounds.
    """
    lengths = {
        len(history.bits.up)
        for history, is_over in zip(histories, ended, strict=True)
        if not is_over
    }
    if len(lengths) > 1:
        got = f"histories of {' and '.join(map(str, sorted(lengths)))} rounds"
        allowed = "equally many rounds, but for histories that ended by themselves"
        hint = f"Continue each with run(resume=...) up to round {max(lengths)} first."
        raise InvalidInput.found(field, got, allowed, hint)


def check_continued(stored: Sequence[History], given: Sequence[History], folder: Path) -> None:
    """Refuses checkpoints that belong to other rounds than the histories that are continued.

    A run would overwrite them.

    Args:
        stored: histories of the checkpoints.
        given: to continue.
        folder: of the checkpoints.

    Raises:
        InvalidInput: a stored history differs from the given one in the rounds of both.
    """
    for past, history in zip(stored, given, strict=True):
        if not _agree(past, history):
            hint = f"Choose another folder than {folder}, or leave out resume."
            raise InvalidInput.found(
                "run(checkpoint=..., resume=...)",
                "checkpoints of other rounds than the history's",
                "a folder without checkpoints, or with those of the same run",
                hint,
            )


def _agree(one: History, other: History) -> bool:
    """Returns whether the traffic and the metrics of two histories agree as far as both go."""
    common = min(len(one.bits.up), len(other.bits.up))
    traffic = (np.array_equal(one.bits.up[:common], other.bits.up[:common])) and np.array_equal(
        one.bits.down[:common], other.bits.down[:common]
    )
    _, rows, other_rows = np.intersect1d(one.rounds, other.rounds, return_indices=True)
    names = one.metrics.keys() & other.metrics.keys()
    return traffic and all(
        np.array_equal(
            one.metrics[name][rows].astype(float),
            other.metrics[name][other_rows].astype(float),
            equal_nan=True,
        )
        for name in names
    )


def total_rounds(histories: Sequence[History]) -> int:
    """Returns the rounds of some histories together, by which the newer ones of a run are known."""
    return sum(len(history.bits.up) for history in histories)


def _refuse(path: str, current: Any, recorded: Any) -> None:
    """Refuses to continue a history with something else than it was made with."""
    hint = (
        "A history is continued by the same run. Another run starts anew, and its privacy "
        "adds to what was spent."
    )
    if path == "privacy":  # of which one of the two has none
        current, recorded = (
            "no Privacy" if value is None else "a Privacy" for value in (current, recorded)
        )
    elif path == "data.content":
        current, recorded = "other examples", "the same examples"
    elif path == "memory":  # of the channel's codec
        path, current, recorded = "channel.up", current, recorded or "no memory"
    elif path.startswith("server"):
        path = path.replace("server", "schedule", 1)
        if recorded is None and path == "schedule":
            current, recorded = "an asynchronous server", "a server that waits for its cohorts"
        else:
            current, recorded = shown(current), shown(recorded)
    else:
        current, recorded = shown(current), shown(recorded)
    raise InvalidInput.found(
        f"run(resume=...), {path}", current, f"{recorded}, as the history was made with", hint
    )
