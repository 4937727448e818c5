"""Passes over a client's minibatches that are repeated until their losses hardly differ."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedax.core import Client, Minibatch, Scalar, Vector

WINDOW = 10
"""Passes whose losses say whether they have settled."""


def until_settled(
    client: Client,
    step: Callable[[Vector, Minibatch], tuple[Vector, Float[Array, ""]]],
    start: Vector,
    share: Scalar,
    most: Int[Array, ""],
    threshold: Scalar,
) -> Vector:
    """Repeats passes over a share of the client's minibatches until their losses hardly differ.

    Every pass begins with the round's first minibatch.

    Args:
        client: with the minibatches of the round.
        step: returns the vector after a minibatch, and the loss before it.
        start: the vector at first.
        share: of the client's examples, in whole minibatches, at least one.
        most: the most passes.
        threshold: of the standard deviation of the last `WINDOW` passes' last losses.
    """
    rows = jnp.maximum(jnp.round(share * jnp.asarray(client.size, start.dtype)), 1)
    batches = jnp.ceil(rows / jnp.asarray(client.batch, start.dtype))
    zero = jnp.zeros((), start.dtype)

    def minibatch(now: tuple[Array, ...], batch: Minibatch) -> tuple[Array, ...]:
        vector, loss, done = now
        # minibatches beyond the share change nothing
        after = jax.lax.cond(done < batches, lambda: step(vector, batch), lambda: (vector, loss))
        return *after, done + 1

    def one_pass(now: tuple[Array, ...]) -> tuple[Array, ...]:
        vector, losses, count = now
        vector, loss, _ = client.for_each_minibatch(minibatch, (vector, zero, zero))
        # a ring of the losses of the last passes
        return vector, losses.at[count % WINDOW].set(loss), count + 1

    def goes_on(now: tuple[Array, ...]) -> Array:
        _, losses, count = now
        return (count < most) & ~((count > WINDOW) & (losses.std() < threshold))

    begin = start, jnp.zeros(WINDOW, start.dtype), jnp.int32(0)
    return jax.lax.while_loop(goes_on, one_pass, begin)[0]
