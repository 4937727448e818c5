"""The loss that clients see while they train."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client, Minibatch
from fedax.observe.base import Observer, View


class TrainingLoss(Observer):
    """Computes the mean minibatch loss while clients train, as many released codes log it.

    `training_loss` is the mean over all minibatches of the clients that worked last, each before
    its step, if they train once more from the current model, each client once. It includes l2. It
    is lower than the loss of the global model on the same examples as soon as local steps help, and
    the more so the fewer classes a client has. A log during training has the cohort that made the
    model too, from the model before. NaN before the first round.

    The learning rate, the number of steps and the minibatches are those of round 0, with one draw
    for all observations. They differ from those of a round with a solver whose learning rate
    changes, with `Schedule(times=...)`, and with work that is drawn, as by `sync_probability`,
    `stragglers`, or a range of epochs, steps or batch sizes.

    Costs the local work of a cohort at every observation. Needs a solver with one step size.

    Source: the `train_loss` of FedLab's trainers, and of the code of Zeng et al., FedAWARE
    (arXiv:2310.02702).
    """

    def __call__(self, view: View) -> dict[str, Any]:
        cohort, w, clients = view.cohort(), view.w, view.task.train.clients
        # marks by client; padding of the cohort has no number that a client has, and is dropped
        is_valid = jnp.arange(cohort.ids.shape[0], dtype=jnp.int32) < cohort.count
        is_drawn = (
            jnp.zeros(clients, w.dtype)
            .at[jnp.where(is_valid, cohort.ids, clients)]
            .set(1, mode="drop")
        )

        def train(client: Client) -> tuple[Float[Array, ""], Float[Array, ""]]:
            layout, rate = client.layout, client.plain_learning_rate

            def step(carry: tuple[Any, ...], batch: Minibatch) -> tuple[Any, ...]:
                x, total, count = carry
                params = layout.unravel(x)
                return (
                    # the loss is taken before the step
                    x - rate * layout.ravel(batch.gradient(params)),
                    total + batch.loss(params),
                    count + 1,
                )

            zero = jnp.zeros((), w.dtype)
            _, total, count = client.for_each_minibatch(step, (w, zero, zero))
            return total, count

        def train_if_drawn(
            client: Client, is_drawn: Float[Array, ""]
        ) -> tuple[Float[Array, ""], Float[Array, ""]]:
            # a branch that is not taken costs nothing: the other clients do not train
            zero = jnp.zeros((), w.dtype)
            return jax.lax.cond(is_drawn > 0, lambda: train(client), lambda: (zero, zero))

        total, count = view.each(train_if_drawn, is_drawn)
        # minibatches of all clients count alike, so clients with many steps count more
        steps = count.sum()
        return {
            "training_loss": jnp.where(
                steps > 0, total.sum() / jnp.where(steps > 0, steps, 1), jnp.nan
            )
        }
