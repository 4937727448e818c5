"""The spread of the workers' models between two synchronisations of local gradient descent."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client, InvalidInput
from fedax.core.hyper import static_number
from fedax.core.scheduling.local_work import real
from fedax.observe.base import Observer, View


class LocalSpread(Observer):
    r"""The next round of local gradient descent, step by step.

    The H full-gradient steps that every client takes from the model.

    Arrays of shape (H,), at the steps $t = 0, \dots, H - 1$ after the synchronisation:

    - `spread`: $V_t = \frac1M \sum_m \lVert x^m_t - \hat x_t \rVert^2$ with the mean model
      $\hat x_t$.
    - `spread_gradient`: $\lVert g_t \rVert^2$, $g_t = \frac1M \sum_m \nabla f_m(x^m_t)$.
    - `spread_rate`: the step size $\gamma$, a number.
    - `spread_gap`, if the minimum is known: $D_f(\hat x_t, x_*) = f(\hat x_t) - f_*$.

    With a method that does something else they say what local gradient descent would do. All
    clients count alike. Costs about two rounds, and clients x H x dim numbers. Needs SGD without
    momentum or decay, `batch_size="full"`, and as many steps in every round.

    Args:
        minimum: $f_*$, if it is known.

    Raises:
        InvalidInput: another solver or schedule.

    Source: Khaled, Mishchenko, Richtarik, First Analysis of Local GD on Heterogeneous Data
    (arXiv:1909.04715), eq. (3), Lemmas 1 to 4; `fedax.theory.local_gd` has the bounds.
    """

    minimum: float | None = eqx.field(static=True, default=None, converter=static_number)

    def __call__(self, view: View) -> dict[str, Any]:
        # clients of one example each: with full batches the steps do not depend on the sizes
        schedule, sizes = view.schedule, [1] * view.task.train.clients
        coin = schedule.sync_probability
        if (
            schedule.times is not None
            # a coin that always ends the round gives one step; others give random numbers of steps
            or not (coin is None or (real(coin) and coin == 1))
            or schedule.batch_size != "full"
            or not schedule.equal_steps(sizes)
        ):
            allowed = "schedules with batch_size='full' and as many steps in every round"
            raise InvalidInput.found("observe LocalSpread", "another schedule", allowed)
        steps, rate = schedule.most_steps(1)[1], view.solver.plain_step_size()
        if getattr(view.solver, "decay", 1) != 1:
            raise InvalidInput.of("observe LocalSpread", view.solver, "SGD without decay")

        def descend(client: Client) -> Any:
            def step(x: Float[Array, "dim"], _: None) -> Any:
                gradient = client.gradient(x)
                return x - rate * gradient, (x, gradient)

            # the points before each step, with their gradients: shape (H, dim)
            return jax.lax.scan(step, view.w, length=steps)[1]

        models, gradients = view.each(descend)  # shape (clients, H, dim)
        mean = models.mean(0)
        metrics = {
            # squared distances summed over dim, then the mean over clients: shape (H,)
            "spread": ((models - mean[None]) ** 2).sum(2).mean(0),
            "spread_gradient": (gradients.mean(0) ** 2).sum(1),
            "spread_rate": jnp.asarray(rate, view.w.dtype),
        }
        if self.minimum is None:
            return metrics
        # f at the mean model of each step: shape (clients, H)
        losses = view.each(lambda client: jax.lax.map(client.loss, mean))
        return metrics | {"spread_gap": losses.mean(0) - self.minimum}
