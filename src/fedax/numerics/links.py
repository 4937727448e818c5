"""Links of one round: which messages arrive, and how."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def after_losses(
    neighbours: Int[Array, "clients width"],
    weights: Float[Array, "clients width"],
    key: Any,
    drops: float,
    repair: str,
) -> Float[Array, "clients width"]:
    """Returns the weights that are left when some messages are lost; what was lost goes to the
    client's weight on itself.

    Args:
        neighbours: of each client, itself first.
        weights: of their messages.
        key: draws the losses.
        drops: the probability of a loss.
        repair: who keeps a lost weight, see `Graph.lossy`.
    """
    own = jnp.arange(len(neighbours), dtype=jnp.int32)[:, None]
    ends = jnp.broadcast_to(own, neighbours.shape), neighbours
    if repair == "both":  # one draw for both directions
        ends = jnp.minimum(*ends), jnp.maximum(*ends)
    keys = jax.random.split(key, len(neighbours))
    luck = jax.vmap(
        jax.vmap(lambda i, j: jax.random.uniform(jax.random.fold_in(keys[i], j), (), jnp.float32))
    )(*ends)
    lost = jnp.where((luck < drops) & (neighbours != own), weights, 0)
    kept = (
        jnp.zeros_like(weights[:, 0]).at[neighbours].add(lost)
        if repair == "sender"
        else lost.sum(1)
    )
    return (weights - lost).at[:, 0].add(kept)
