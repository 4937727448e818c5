"""The constants of local work and of the exchange, on which bounds depend."""

import math
from typing import Any, cast

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import Client, InvalidInput, Minibatch
from fedax.observe.base import Observer, View


class LocalWork(Observer):
    r"""The quantities of local training that the bounds of DFedAvgM need.

    And how unlike minibatches and clients are.

    - `local_steps`: K, the most steps of a round; `local_rate`: $\eta$ of round 0;
      `local_momentum`: $\theta$.
    - `mixing`: $\lambda$ of the graph, for one that changes the mean over a period; `graph_period`:
      the rounds after which the graph repeats, 1 for one that does not change. 0 and 1 with a
      server.
    - `rounding_square`: $d s^2$ of messages that are rounded to a grid of step s, 0 if they are
      not, NaN if the step differs by message or the codec is another; `rounding_down`: 1 if they
      are rounded down.
    - `gradient_largest`: $\max_k \lVert \nabla f_k(x_k) \rVert$, at each client's own model without
      a server, else at the global one: what Assumption 3's B must exceed.
    - `batch_variance`: the largest mean over a client's minibatches of
      $\lVert \nabla f_k(\cdot; \xi) - \nabla f_k \rVert^2$ there: $\sigma_l^2$ of Assumption 2. The
      minibatches are those of round 0, with one draw for all observations: with
      `Schedule(times=...)`, `sync_probability` or other drawn work as many as that round has.

    Costs a pass over the examples of all clients, and the minibatches of a round. Needs a solver
    with one step size.

    Source: Sun, Li and Wang, Decentralized Federated Averaging (arXiv:2104.11375), Assumptions 2
    and 3, Definition 1.
    """

    def __call__(self, view: View) -> dict[str, Any]:
        dtype, clients = view.w.dtype, view.task.train.clients
        # shape (clients, dim)
        models = view.nodes if view.nodes is not None else jnp.tile(view.w[None], (clients, 1))
        solver: Any = view.solver
        momentum, method = getattr(solver, "momentum", 0.0), cast(Any, view.method)
        if not hasattr(solver, "learning_rate"):
            raise InvalidInput.found(
                "observe LocalWork",
                type(solver).__name__,
                "solvers with a learning rate, such as SGD",
            )

        def measure(
            client: Client, w: Float[Array, "dim"]
        ) -> tuple[Float[Array, ""], Float[Array, ""]]:
            # the full gradient, and the model as a pytree, which minibatches take
            full_gradient, params = client.gradient(w), client.layout.unravel(w)

            def add(carry: tuple[Array, Array], batch: Minibatch) -> tuple[Array, Array]:
                deviation = client.layout.ravel(batch.gradient(params)) - full_gradient
                return carry[0] + deviation @ deviation, carry[1] + 1

            total, count = client.for_each_minibatch(
                add, (jnp.zeros((), dtype), jnp.zeros((), dtype))
            )
            return full_gradient @ full_gradient, jnp.where(
                count > 0, total / jnp.where(count > 0, count, 1), 0
            )

        # each of shape (clients,)
        squares, noise = view.each(measure, models)
        mixing, period = jnp.zeros((), dtype), 1
        if view.nodes is not None:
            # the mixing of a whole period, per round
            graph, product = method.network(clients), jnp.eye(clients, dtype=dtype)
            period = graph.period
            # mixing the identity gives the product of the matrices of a period
            for t in range(period):
                product = graph.mix(product, t)
            # distance to complete averaging, as a geometric mean over the rounds
            mixing = jnp.linalg.norm(product - 1 / clients, 2) ** (1 / period)
            # infinite without a fixed doubly stochastic matrix; the weights may be traced
            sum_error = jnp.maximum(
                jnp.abs(product.sum(0) - 1).max(), jnp.abs(product.sum(1) - 1).max()
            )
            period = jnp.where(
                (sum_error < 1e-4) & (not (graph.is_random or graph.noise)), period, math.inf
            )
        numbers = {
            "local_steps": view.schedule.most_steps(view.task.train.largest)[1],
            "local_momentum": momentum,
        }
        # NaN where the step of the grid differs by message
        step = getattr(method, "step", 0.0) or (jnp.nan if hasattr(method, "rounding") else 0.0)
        # NaN where another codec decides about rounding
        step = step if getattr(method, "code", None) is None else jnp.nan
        numbers |= {"graph_period": period}
        numbers |= {"rounding_square": view.w.shape[0] * step**2}
        numbers |= {"rounding_down": float(getattr(method, "rounding", "") == "floor")}
        return {name: jnp.asarray(value, dtype) for name, value in numbers.items()} | {
            "local_rate": jnp.asarray(solver.learning_rate, dtype),
            "mixing": mixing,
            "gradient_largest": jnp.sqrt(squares.max()),
            "batch_variance": noise.max(),
        }
