"""A bound on what a method may hold at once, checked before anything is allocated."""

import os
from typing import Any

import jax
import jax.numpy as jnp

from fedax.errors import InvalidInput

MOST = 1 << 40
"""The bound in bytes where the machine does not tell its memory."""


def machine_memory() -> int:
    """Returns the bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return MOST


def bytes_of(shapes: Any) -> int:
    """Counts the bytes of all arrays of a pytree, or of their shapes."""
    return sum(
        leaf.size * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(shapes)
        if hasattr(leaf, "dtype")
    )


def check_room(owner: str, clients: int, needed: int, what: str, hint: str = "") -> None:
    """Refuses what does not fit into the machine's memory.

    Args:
        owner: a method, or a phase, for the message.
        clients: how many have a part in it.
        needed: bytes.
        what: they hold.
        hint: what to do instead.

    Raises:
        InvalidInput: more than there is.
    """
    available = machine_memory()
    if needed > available:
        got = f"{clients:,} clients, whose {what} take {needed / 2**30:,.1f} GiB"
        raise InvalidInput.found(
            owner, got, f"at most {available / 2**30:,.1f} GiB, the memory of this machine", hint
        )


def check_memories(clients: int, initial: Any) -> None:
    """Refuses memories of all clients that do not fit into the machine's memory.

    Args:
        clients: how many.
        initial: what each begins with, a pytree or a function of the client's number.

    Raises:
        InvalidInput: they do not fit; the message names the way out.
    """
    row = (
        jax.eval_shape(initial, jnp.int32(0))
        if callable(initial)
        else jax.eval_shape(lambda: initial)
    )
    hint = 'Simulation(memory="disk") keeps the memories of those who have worked in files.'
    check_room("memory of the clients", clients, clients * bytes_of(row), "memories", hint)
