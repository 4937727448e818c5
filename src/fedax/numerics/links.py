"""Links of one round: which messages are lost, and who keeps their weights.

All masks have the shape of a round's table of neighbours, (clients, width), whose first column is
the client itself. A link is drawn by the numbers of its two clients, not by its place in the table.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedax.utils.random import Index


@functools.partial(jax.jit, static_argnames=("fails", "recovers", "both"))
def lost_in_bursts(
    neighbours: Int[Array, "clients width"],
    key: Any,
    round: Index,
    fails: float,
    recovers: float,
    both: bool,
) -> Bool[Array, "clients width"]:
    """Returns which links have failed in a round, each of which is a Markov chain of two states.

    No state is carried from round to round, so that a resumed run and every engine see the same
    links. One number u is drawn for a link and a round. A working link fails if u < fails, and a
    failed one stays so if u < 1 - recovers. Below both bounds, and above both, the new state does
    not depend on the one before. So the rounds are read backwards until each link has such a draw,
    about log(links) / (fails + recovers) of them.

    Args:
        neighbours: of each client, itself first.
        key: the same in all rounds of a run.
        round: from 0, where the chains begin in their stationary distribution.
        fails: the probability that a link which works does not in the next round.
        recovers: that of one which has failed to work in the next round.
        both: whether a link fails in both directions at once.
    """
    low, high = min(fails, 1 - recovers), max(fails, 1 - recovers)
    stationary, flips = fails / (fails + recovers), fails > 1 - recovers

    def look_back(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        t, is_open, flipped, failed = carry
        uniform, first = draw_uniforms(neighbours, jax.random.fold_in(key, t), both), t == 0
        below = uniform < jnp.where(first, jnp.float32(stationary), jnp.float32(low))
        above = uniform >= jnp.where(first, jnp.float32(stationary), jnp.float32(high))
        decides = is_open & (below | above)
        failed = jnp.where(decides, below ^ flipped, failed)
        is_open = is_open & ~decides
        return t - 1, is_open, flipped ^ (is_open & flips), failed

    no_link = jnp.zeros(neighbours.shape, bool)
    initial = jnp.asarray(round, jnp.int32), ~no_link, no_link, no_link
    return jax.lax.while_loop(lambda carry: carry[1].any(), look_back, initial)[-1]


def weights_left(
    neighbours: Int[Array, "clients width"],
    weights: Float[Array, "clients width"],
    lost: Bool[Array, "clients width"],
    repair: str,
) -> Float[Array, "clients width"]:
    """Returns the weights that are left when some messages are lost; what was lost goes to a
    client's weight on itself.

    Args:
        neighbours: of each client, itself first.
        weights: of their messages.
        lost: which messages do not arrive.
        repair: who keeps a lost weight, see `Graph.lossy`.
    """
    ids = jnp.arange(len(neighbours), dtype=jnp.int32)[:, None]
    missing = jnp.where(lost & (neighbours != ids), weights, 0)
    returned = (
        jnp.zeros_like(weights[:, 0]).at[neighbours].add(missing)
        if repair == "sender"
        else missing.sum(1)
    )
    return (weights - missing).at[:, 0].add(returned)


def draw_uniforms(neighbours: Array, key: Any, both: bool) -> Float[Array, "clients width"]:
    """Returns a uniform number of each link, the same in both directions if `both`."""
    ids = jnp.arange(len(neighbours), dtype=jnp.int32)[:, None]
    ends = jnp.broadcast_to(ids, neighbours.shape), neighbours
    if both:
        ends = jnp.minimum(*ends), jnp.maximum(*ends)
    keys = jax.random.split(key, len(neighbours))
    return jax.vmap(
        jax.vmap(lambda i, j: jax.random.uniform(jax.random.fold_in(keys[i], j), (), jnp.float32))
    )(*ends)
