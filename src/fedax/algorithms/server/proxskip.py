"""ProxSkip, or Scaffnew: local steps that skip communication, with shifts that make them exact."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    InvalidInput,
    LocalProblem,
    ModelAndStates,
    Schedule,
    Upload,
    Vector,
)


class Shifted(eqx.Module):
    """One client's state: its shift, and its last model before the averaging."""

    h: Vector
    x: Vector


class ProxSkip(Algorithm[ModelAndStates]):
    r"""Everybody takes shifted local steps until a coin, common to all, says that it is time to
    average.

    $$ \hat x_k \leftarrow x_k - \gamma (g_k(x_k) - h_k) \quad\text{in every step; with probability
    } p \text{ after it:} \quad
       x_k \leftarrow \sum_i p_i \hat x_i, \qquad h_k \leftarrow h_k + \frac{p}{\gamma} (x_k - \hat
       x_k). $$

    The shifts are zero at first, and $\sum_k p_k h_k = 0$ always. A round ends with an averaging:
    the coins are `Schedule(sync_probability=p)`. A schedule with a fixed number H of steps is the
    form without coins, with p = 1/H. The step $\gamma$ is the solver's learning rate (SGD without
    momentum). Everybody takes part in every round and takes equally many steps. A client adds to
    its shift when it receives the mean, at the beginning of the next round.

    Example:
        >>> import fedax
        >>> method, schedule = fedax.ProxSkip(), fedax.Schedule(sync_probability=0.1)

    Source: Mishchenko, Malinovsky, Stich and Richtarik, ProxSkip: Yes! Local Gradient Steps
    Provably Lead to Communication Acceleration! Finally!, ICML 2022 (Scaffnew), as in the code
    github.com/Glebzok/ProxSkip (proxskip/methods).
    """

    citation = Citation(
        paper="Mishchenko, Malinovsky, Stich and Richtarik, ProxSkip, ICML 2022 (arXiv:2202.09357)",
        read=("others' code",),
    )

    def check(self, schedule: Schedule, sizes: Sequence[int]) -> None:
        if schedule.times is not None or not schedule.equal_steps(sizes):
            allowed = (
                "with ProxSkip, as many steps for every client (sync_probability=p, steps=H or "
                "batch_size='full'), not times"
            )
            raise InvalidInput.found("run(schedule=...)", "unequal numbers of local steps", allowed)

    def init(self, fed: Federation, w: Vector) -> ModelAndStates:
        return ModelAndStates(w, fed.client_states(Shifted(jnp.zeros_like(w), w)))

    def round(self, fed: Federation, state: ModelAndStates) -> ModelAndStates:
        return ModelAndStates(*fed.average(self.train, fed.everyone, state.w, states=state.clients))

    def train(self, client: Client, w: Vector, state: Shifted) -> Upload[Vector]:
        p = client.schedule.sync_probability
        p = 1 / jnp.asarray(client.steps, w.dtype) if p is None else jnp.asarray(p, w.dtype)
        # the rate of the steps from which x came, those of the round before
        before = jnp.maximum(jnp.asarray(client.round) - 1, 0)
        rate = client.solver.step_size() * client.solver.factor(before, w.dtype)
        h = state.h + p / rate * (w - state.x)
        x = client.minimize(LocalProblem(linear=-h), start=w)
        return Upload(x, state=Shifted(h, x))
