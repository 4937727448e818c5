"""Methods with a proximity constraint for each client: their state, its start, its bounds."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedax.algorithms.server.multipliers import Multiplier
from fedax.core import Algorithm, Client, ClientStates, Federation, Personal, Vector
from fedax.core.hyper import PerClient, entry, hyper


class DualState(eqx.Module):
    """One client's state: its model, its multiplier, and whether it ever worked."""

    x: Vector
    dual: Multiplier
    visited: Float[Array, ""]


class BeyondConsensusState(eqx.Module):
    """The global model, the clients' states, and the dual steps of all clients so far."""

    w: Vector
    clients: ClientStates
    clock: Int[Array, ""]


class Constrained(Algorithm[BeyondConsensusState]):
    """The multipliers and tolerances of all clients, at the start and as others see them; see
    `FedBC` for the hyperparameters.
    """

    lam: PerClient = hyper(0.0, low=0.0, per_client=True, doc="initial multipliers")
    gamma: PerClient = hyper(0.0, low=0.0, per_client=True, doc="initial tolerances")
    lam_min: PerClient = hyper(0.0, low=0.0, per_client=True, doc="lower bound of the multipliers")
    lam_max: PerClient = hyper(
        float("inf"), low=0.0, per_client=True, doc="upper bound of the multipliers"
    )

    def init(self, fed: Federation, w: Vector) -> BeyondConsensusState:
        def initial_state(k: Int[Array, ""]) -> DualState:
            lam = entry(self.lam, k).astype(w.dtype)
            gamma = entry(self.gamma, k).astype(w.dtype)
            zero = jnp.zeros_like(lam)
            return DualState(w, Multiplier(lam, gamma, zero, zero, jnp.int32(0)), zero)

        return BeyondConsensusState(w, fed.client_states(initial_state), jnp.int32(0))

    def weights(self, state: BeyondConsensusState) -> ClientStates:
        return state.clients.each(lambda client_state: client_state.dual.lam)

    def personal(self, state: BeyondConsensusState) -> Personal:
        return Personal(self.adapt, (state.w,), state.clients)

    def adapt(self, client: Client, z: Vector, state: DualState) -> Vector:
        """Returns the model that a client uses itself: its last one, or the global one before its
        first work.
        """
        return jnp.where(state.visited > 0, state.x, z)
