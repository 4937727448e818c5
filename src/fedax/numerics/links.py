"""Links of one round: which messages are lost, and who keeps their weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key


def drop(
    neighbours: Int[Array, "clients width"],
    weights: Float[Array, "clients width"],
    key: Key[Array, ""],
    drops: float,
    repair: str,
) -> Float[Array, "clients width"]:
    """Returns the weights that are left when some messages are lost; what was lost goes to a
    client's weight on itself.

    A link is drawn by the numbers of its two clients, not by its place in the table.

    Args:
        neighbours: of each client, itself first.
        weights: of their messages.
        key: of the draws.
        drops: the probability that a message is lost.
        repair: who keeps a lost weight, see `Graph.lossy`.
    """
    ids = jnp.arange(len(neighbours), dtype=jnp.int32)[:, None]
    ends = jnp.broadcast_to(ids, neighbours.shape), neighbours
    if repair == "both":
        # the same number for both directions
        ends = jnp.minimum(*ends), jnp.maximum(*ends)
    keys = jax.random.split(key, len(neighbours))
    draw = jax.vmap(
        jax.vmap(lambda i, j: jax.random.uniform(jax.random.fold_in(keys[i], j), (), jnp.float32))
    )
    missing = jnp.where((draw(*ends) < drops) & (neighbours != ids), weights, 0)
    if repair == "sender":
        returned = jnp.zeros_like(weights[:, 0]).at[neighbours].add(missing)
    else:
        returned = missing.sum(1)
    return (weights - missing).at[:, 0].add(returned)
