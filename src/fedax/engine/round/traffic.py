"""Traffic of phases: the bits of one message in each direction, and how many there were."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.communication.channel import bits_of
from fedax.core.traffic import pack, unpack
from fedax.engine.round.phase import PhaseResult, PhaseWork
from fedax.utils.random import Index


def count_traffic(phase_work: PhaseWork, result: PhaseResult, messages: Index) -> dict[str, Any]:
    """Returns a phase's traffic: packed bits of one message down and up, and their number."""
    up = bits_of((result.upload.value, result.upload.weight))
    down = bits_of(phase_work.sent_down)
    # a backend that measures has the sum over all clients, as of one message
    if result.sent is not None:
        down, up, messages = *result.sent, 1
    return pack_traffic({"down": down, "up": up, "messages": messages})


def pack_traffic(traffic: dict[str, Any]) -> dict[str, Any]:
    """Returns a phase's traffic as arrays of 32 bits; bits may need more of them."""
    bits = {direction: pack(traffic[direction]) for direction in ("down", "up")}
    return jax.tree.map(jnp.int32, traffic | bits)


def missing_value(like: Any) -> Any:
    """Returns what stands for a value that a round did not log: NaN, or 0 for whole numbers."""
    dtype = np.asarray(like).dtype if isinstance(like, np.ndarray | np.generic) else like.dtype
    return np.full(np.shape(like), np.nan if jnp.issubdtype(dtype, jnp.inexact) else 0, dtype)


def bits_spent(
    traffic: Sequence[dict[str, Any]], direction: str, rounds: tuple[int, ...] = ()
) -> Any:
    """Returns the bits of all phases in one direction ("down" or "up").

    Args:
        traffic: of the phases of one round, or of several rounds, with a first axis over them.
        direction: "down" or "up".
        rounds: that first axis, such as (10,); empty for one round.
    """
    count_name = "messages" if direction == "up" else "sent"
    bits_by_phase = (
        unpack(*phase[direction]) * np.asarray(phase.get(count_name, phase["messages"]))
        for phase in traffic
    )
    return sum(bits_by_phase, np.zeros(rounds, np.int64))
