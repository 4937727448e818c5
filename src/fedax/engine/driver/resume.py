"""Which histories and checkpoints a run may continue."""

from collections.abc import Sequence

import jax
import numpy as np

from fedax.communication.channel import Codec
from fedax.core.federation import HiddenMemory, is_memory
from fedax.core.history import History
from fedax.engine.compilation.identity import Identity, check_same
from fedax.engine.round.engine import RunCarry
from fedax.errors import InvalidInput

MEMORY = "memory of the channel"
"""Name of what clients store for a codec, in the identity of a run."""
_STATE = ("algorithm", "seed", "model", "channel.privacy", "state of the solver")
"""What the state of a run depends on: beginnings of names of its identity."""
_DATA = ("task.clients", "task.examples", "data.train", "data.frozen", "examples of", MEMORY)
"""What it also depends on, where both runs know it: examples may be elsewhere."""


def codec_memory(codec: Codec | None) -> str | None:
    """Returns what clients store for a codec, in words; None if nothing."""
    if codec is None or not codec.has_memory:
        return None
    # residuals mean the same with every codec
    is_residual = type(codec).message_and_memory is Codec.message_and_memory
    return "what messages lost" if is_residual else type(codec).__name__


def rounds_done(histories: Sequence[History]) -> int:
    """Returns the rounds that the longest of some histories has; 0 for none."""
    return max((len(history.bits.up) for history in histories), default=0)


def check_resumed(
    histories: Sequence[History], identities: Sequence[Identity], rounds: int
) -> None:
    """Refuses histories of other runs, and those that have more rounds than the run.

    Their states do not fit, and the privacy that was spent in them would not be counted. The
    schedule counts where epsilon or the arrivals at a server depend on it.

    Args:
        histories: to continue.
        identities: of the runs that continue them.
        rounds: of these runs.

    Raises:
        InvalidInput: another number of histories, fewer rounds than they have, or a history of
            another run; the message names the difference.
    """
    if len(histories) != len(identities):
        allowed = f"as many as there are runs, {len(identities)}"
        raise InvalidInput.found("run_grid(resume=...)", f"{len(histories)} histories", allowed)
    done = rounds_done(histories)
    if rounds < done:
        allowed = f"whole numbers >= {done}, the rounds of the history that is continued"
        raise InvalidInput.of("run(rounds=...)", rounds, allowed)
    for history, identity in zip(histories, identities, strict=True):
        carry = jax.tree.leaves(RunCarry.of(history), is_leaf=is_memory)
        if any(isinstance(node, HiddenMemory) for node in carry):
            reason = "a history with privacy has nothing of what its clients store"
            raise InvalidInput.because("run(resume=...)", reason, "Continue from a checkpoint.")
        recorded = history.origin or {}
        # who is drawn decides about epsilon, and the arrivals at a server about its downlinks
        is_private = identity.get("channel.privacy") or recorded.get("channel.privacy")
        is_scheduled = is_private or identity["schedule.asynchronous"]
        depends_on = (*_STATE, "schedule") if is_scheduled else _STATE
        unused = MEMORY if identity[MEMORY] is None else ""
        current, before = (
            {
                name: value
                for name, value in facts.items()
                if name.startswith(depends_on)
                or (name.startswith(_DATA) and name in other and name != unused)
            }
            for facts, other in ((identity, recorded), (recorded, identity))
        )
        hint = "Another run starts anew, and its privacy adds to what was spent."
        check_same(current, before, "run(resume=...)", hint)


def check_lengths(field: str, histories: Sequence[History], ended: Sequence[bool]) -> None:
    """Refuses histories of different lengths, whose rounds one program cannot go on with.

    Args:
        field: that is refused.
        histories: to continue.
        ended: which of them have ended by themselves; their lengths do not count.

    Raises:
        InvalidInput: two that go on have different numbers of rounds.
    """
    runs = zip(histories, ended, strict=True)
    lengths = sorted({len(history.bits.up) for history, is_over in runs if not is_over})
    if len(lengths) > 1:
        got = f"histories of {' and '.join(map(str, lengths))} rounds"
        allowed = "equally many rounds, but for histories that ended by themselves"
        hint = f"Continue each with run(resume=...) up to round {lengths[-1]} first."
        raise InvalidInput.found(field, got, allowed, hint)


def check_same_course(stored: Sequence[History], given: Sequence[History]) -> None:
    """Refuses checkpoints of other rounds than the histories that are continued.

    A run would overwrite them.

    Raises:
        InvalidInput: traffic or metrics differ in the rounds of both.
    """
    for one, other in zip(stored, given, strict=True):
        count = min(len(one.bits.up), len(other.bits.up))
        names = one.metrics.keys() & other.metrics.keys()
        courses = []
        for history, rounds in ((one, other.rounds), (other, one.rounds)):
            rows = np.isin(history.rounds, rounds)
            metrics = [history.metrics[name][rows].astype(float) for name in names]
            courses.append([history.bits.up[:count], history.bits.down[:count], *metrics])
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*courses, strict=True)):
            raise InvalidInput.found(
                "run(checkpoint=..., resume=...)",
                "checkpoints of other rounds than the history's",
                "a folder without checkpoints, or with those of the same run",
                "Choose another folder, or leave out resume.",
            )
