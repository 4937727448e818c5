"""Gradient descent on the federated objective, and local gradient descent."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    InvalidInput,
    Minibatch,
    Schedule,
    Upload,
    Vector,
    hyper,
)


class GD(Algorithm[Vector]):
    r"""Gradient descent: one step of everybody's full gradients in every round.

    $$ x \leftarrow x - \eta \sum_k p_k \nabla f_k(x) $$

    with the solver's learning rate $\eta$; the schedule's work is not used. Needs SGD without
    momentum as the solver.

    Example:
        >>> import fedax
        >>> method = fedax.GD()

    Source: Cauchy 1847; the baseline of Khaled, Mishchenko, Richtarik, First Analysis of Local GD
    (arXiv:1909.04715).
    """

    citation = Citation(
        paper="Khaled, Mishchenko, Richtarik, First Analysis of Local GD on Heterogeneous Data "
        "(arXiv:1909.04715)",
        read=("paper",),
        equation="Alg. 1 with H = 1",
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        return fed.average(self.step, fed.everyone, state)

    def step(self, client: Client, x: Vector) -> Upload[Vector]:
        return Upload(x - client.plain_learning_rate * client.gradient(x), reference=x)


class LocalState(eqx.Module):
    """The synchronised model, the sum of the mean iterates of all local steps, and how many there
    were.
    """

    x: Vector
    total: Vector
    time: Float[Array, ""]


class LocalGD(Algorithm[LocalState]):
    r"""Local gradient descent: all clients take the schedule's steps, then average.

    $$ x^m_{t+1} = x^m_t - \gamma g_m(x^m_t), \qquad
       x^m_{t_r} \leftarrow \sum_j p_j x^j_{t_r} \text{ at the synchronisation times } t_1 < t_2 <
       \dots $$

    with $\gamma$ the solver's learning rate and $g_m$ the gradient on a minibatch. The paper's
    method has `Schedule(batch_size="full", weights="equal")` with `steps=H` or
    `times=(t_1, t_2, ...)`; minibatches make it local SGD, H = 1 is (minibatch) gradient descent.
    Its theorem speaks of $\bar x_T = \frac1T \sum_{t<T} \sum_m p_m x^m_t$. All clients have to take
    the same number of steps (a schedule with which they may not is refused), and the solver is SGD
    without momentum.

    Args:
        returned: "last", the synchronised model, or "mean", $\bar x_T$.

    Example:
        >>> import fedax
        >>> method, schedule = (
        ...     fedax.LocalGD(),
        ...     fedax.Schedule(steps=8, batch_size="full", weights="equal"),
        ... )

    Source: Khaled, Mishchenko, Richtarik, First Analysis of Local GD on Heterogeneous Data
    (arXiv:1909.04715), Alg. 1.
    """

    returned: str = hyper(
        "last", choices=("last", "mean"), doc="the synchronised model, or the mean of all iterates"
    )

    citation = dataclasses.replace(GD.citation, equation="Alg. 1")

    def check(self, schedule: Schedule, sizes: Sequence[int]) -> None:
        if not schedule.equal_steps(sizes):
            allowed = (
                "with LocalGD, as many steps for every client (steps=H, times or "
                "batch_size='full', without stragglers)"
            )
            raise InvalidInput.found("run(schedule=...)", "unequal numbers of local steps", allowed)

    def init(self, fed: Federation, w: Vector) -> LocalState:
        return LocalState(w, jnp.zeros_like(w), jnp.zeros((), w.dtype))

    def round(self, fed: Federation, state: LocalState) -> LocalState:
        x, total, steps = fed.average(self.train, fed.everyone, state.x)
        return LocalState(x, state.total + total, state.time + steps)

    def model(self, state: LocalState) -> Vector:
        # before the first step the mean of no iterates is the starting point
        mean = (state.total + jnp.where(state.time > 0, 0, state.x)) / jnp.maximum(state.time, 1)
        return mean if self.returned == "mean" else state.x

    def train(self, client: Client, x: Vector) -> Upload[tuple[Vector, Vector, Float[Array, ""]]]:
        layout = client.layout
        rate = client.plain_learning_rate

        def step(carry: tuple[Any, Any], batch: Minibatch) -> tuple[Any, Any]:
            iterate, total = carry
            return optax.tree.add_scale(iterate, -rate, batch.gradient(iterate)), optax.tree.add(
                total, iterate
            )

        last, total = client.for_each_minibatch(
            step, (layout.unravel(x), layout.unravel(jnp.zeros_like(x)))
        )
        sent = layout.ravel(last), layout.ravel(total), jnp.asarray(client.steps, x.dtype)
        return Upload(sent, reference=x)
