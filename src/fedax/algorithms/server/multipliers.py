"""Multipliers of a proximity constraint with a learned tolerance, and gradient ascent on them."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedax.core import Client, Scalar


class Multiplier(eqx.Module):
    """One client's multiplier and tolerance, the momenta of both, and the dual steps of all clients
    until its last one.
    """

    lam: Float[Array, ""]
    gamma: Float[Array, ""]
    lam_speed: Float[Array, ""]
    gamma_speed: Float[Array, ""]
    clock: Int[Array, ""]

    @staticmethod
    def initial(lam: Float[Array, ""], gamma: Float[Array, ""]) -> "Multiplier":
        """Returns the state without momenta, before the first dual step."""
        return Multiplier(
            lam, gamma, jnp.zeros_like(lam), jnp.zeros_like(lam), jnp.zeros((), jnp.int32)
        )


class Turns(eqx.Module):
    """Clients that take their dual steps one after the other: those before this round, at its end,
    and the round's order.
    """

    before: Int[Array, ""]
    after: Int[Array, ""]
    order: Int[Array, "capacity"]

    def steps_before(self, client: Client) -> Int[Array, ""]:
        """Returns the dual steps of all clients before the one of a client in this round."""
        return self.before + jnp.argmax(self.order == client.index).astype(self.before.dtype)


class Ascent(eqx.Module):
    r"""Heavy-ball steps on $\lambda (s - \gamma)$, up in $\lambda$ and down in $\gamma$, with
    $s = \lVert x - z \rVert^2$.

    $$ u \leftarrow \theta u + (s - \gamma), \quad \lambda \leftarrow \Pi_{[\lambda_{\min},
    \lambda_{\max}]}(\lambda + \alpha u),
       \qquad v \leftarrow \theta v + \lambda, \quad \gamma \leftarrow \gamma + \alpha v $$

    from the old multiplier and tolerance. Clients that share one optimizer step in turns, and a
    step of one is a step without a gradient of all others.

    Attributes:
        rate: $\alpha$.
        momentum: $\theta$.
        bounds: $\lambda_{\min}$ and $\lambda_{\max}$.
        learns: whether the tolerance moves.
    """

    rate: Scalar
    momentum: Scalar
    bounds: tuple[Any, Any]
    learns: bool = eqx.field(static=True)

    def step(self, dual: Multiplier, square: Float[Array, ""]) -> Multiplier:
        """Takes one step at the squared distance $s$."""
        lam_speed = self.momentum * dual.lam_speed + square - dual.gamma
        gamma_speed = self.momentum * dual.gamma_speed + dual.lam
        return self._move(
            dual,
            self.rate * lam_speed,
            self.rate * gamma_speed,
            lam_speed,
            gamma_speed,
            dual.clock + 1,
        )

    def coast(self, dual: Multiplier, until: Int[Array, ""]) -> Multiplier:
        r"""Steps without a gradient: by $\alpha u (\theta + \theta^2 + \dots)$, always in one
        direction, so bounded once.
        """
        theta, steps = (
            jnp.asarray(self.momentum, dual.lam.dtype),
            (until - dual.clock).astype(dual.lam.dtype),
        )
        # gain / rate is theta + ... + theta^steps
        decay, gain = theta**steps, self.rate * theta * (1 - theta**steps) / (1 - theta)
        lam_speed, gamma_speed = dual.lam_speed, dual.gamma_speed
        return self._move(
            dual,
            gain * lam_speed,
            gain * gamma_speed,
            decay * lam_speed,
            decay * gamma_speed,
            until,
        )

    def _move(
        self,
        dual: Multiplier,
        lam_step: Any,
        gamma_step: Any,
        lam_speed: Any,
        gamma_speed: Any,
        clock: Any,
    ) -> Multiplier:
        lam, gamma = (
            jnp.clip(dual.lam + lam_step, *self.bounds),
            dual.gamma + gamma_step if self.learns else dual.gamma,
        )
        return Multiplier(lam, gamma, lam_speed, gamma_speed, clock)
