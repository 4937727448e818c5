"""Load balancing: assigns clients to devices."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fedax.utils.random import Index


def assign_longest_first(
    steps: Int[Array, "capacity"], count: Index, devices: int
) -> tuple[Array, Array]:
    """Assigns clients to devices, longest first, each to the one with the least work so far (LPT).

    Args:
        steps: work of each slot of the cohort, shape (capacity,).
        count: how many slots are in use.
        devices: number of devices.

    Returns:
        Slots of each device in order of work, shape (devices, capacity), and the number of slots of
        each device, shape (devices,).
    """
    capacity = steps.shape[0]
    present = jnp.arange(capacity, dtype=jnp.int32) < count
    # padding sorts last: its key is 1, those of clients are at most 0
    by_length = jnp.argsort(jnp.where(present, -steps, 1), stable=True).astype(jnp.int32)
    if devices == 1:
        return by_length[None], jnp.asarray(count, jnp.int32)[None]

    def assign(i: Index, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        table, counts, load = state
        device = jnp.argmin(load)
        slot = by_length[i]
        table = table.at[device, counts[device]].set(slot)
        return table, counts.at[device].add(1), load.at[device].add(steps[slot])

    empty = (
        jnp.zeros((devices, capacity), jnp.int32),
        jnp.zeros(devices, jnp.int32),
        jnp.zeros(devices, jnp.int32),
    )
    table, counts, _ = jax.lax.fori_loop(0, count, assign, empty)
    return table, counts
