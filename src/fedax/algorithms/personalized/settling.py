"""Passes over a client's minibatches that are repeated until their losses hardly differ."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedax.core import Client, Minibatch, Scalar, Vector

WINDOW = 10
"""Passes whose losses say whether they have settled."""


def repeat_until_settled(
    client: Client,
    step: Callable[[Vector, Minibatch], tuple[Vector, Float[Array, ""]]],
    start: Vector,
    share: Scalar,
    max_passes: Int[Array, ""],
    threshold: Scalar,
) -> Vector:
    """Repeats passes over a share of the client's minibatches until their losses hardly differ.

    Every pass begins with the round's first minibatch.

    Args:
        client: with the minibatches of the round.
        step: returns the vector after a minibatch, and the loss before it.
        start: the vector at first.
        share: of the client's examples, in whole minibatches, at least one.
        max_passes: the most passes.
        threshold: of the standard deviation of the last `WINDOW` passes' last losses.
    """
    examples = jnp.maximum(jnp.round(share * jnp.asarray(client.size, start.dtype)), 1)
    batches = jnp.ceil(examples / jnp.asarray(client.batch, start.dtype))
    zero = jnp.zeros((), start.dtype)

    def step_within_share(carry: tuple[Array, ...], batch: Minibatch) -> tuple[Array, ...]:
        vector, loss, count = carry
        # minibatches beyond the share change nothing
        after = jax.lax.cond(count < batches, lambda: step(vector, batch), lambda: (vector, loss))
        return *after, count + 1

    def run_pass(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        vector, losses, count = carry
        vector, loss, _ = client.for_each_minibatch(step_within_share, (vector, zero, zero))
        # a ring of the losses of the last passes
        return vector, losses.at[count % WINDOW].set(loss), count + 1

    def is_unsettled(carry: tuple[Array, ...]) -> Array:
        _, losses, count = carry
        return (count < max_passes) & ~((count > WINDOW) & (losses.std() < threshold))

    initial = start, jnp.zeros(WINDOW, start.dtype), jnp.int32(0)
    return jax.lax.while_loop(is_unsettled, run_pass, initial)[0]
