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
        return self._move(dual, self.rate, lam_speed, gamma_speed, 1, dual.clock + 1)

    def coast(self, dual: Multiplier, until: Int[Array, ""]) -> Multiplier:
        r"""Steps without a gradient: by $\alpha u (\theta + \theta^2 + \dots)$, always in one
        direction, so bounded once.
        """
        theta = jnp.asarray(self.momentum, dual.lam.dtype)
        decay = theta ** (until - dual.clock).astype(theta.dtype)
        # gain / rate is theta + ... + theta^steps
        gain = self.rate * theta * (1 - decay) / (1 - theta)
        return self._move(dual, gain, dual.lam_speed, dual.gamma_speed, decay, until)

    def _move(
        self, dual: Multiplier, gain: Any, lam_speed: Any, gamma_speed: Any, decay: Any, clock: Any
    ) -> Multiplier:
        """Moves by speeds, which decay afterwards."""
        lam = jnp.clip(dual.lam + gain * lam_speed, *self.bounds)
        gamma = dual.gamma + gain * gamma_speed if self.learns else dual.gamma
        return Multiplier(lam, gamma, decay * lam_speed, decay * gamma_speed, clock)
