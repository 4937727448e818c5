"""FedBC: federated learning beyond consensus."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedax.algorithms.server.multipliers import Ascent, Multiplier, Turns
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    ClientStates,
    Federation,
    InvalidInput,
    LocalProblem,
    Personal,
    Reduction,
    Scalar,
    Schedule,
    Upload,
    Vector,
    hyper,
)
from fedax.core.hyper import PerClient, entry


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


class FedBC(Algorithm[BeyondConsensusState]):
    r"""Local models may differ from the global one by a tolerance; multipliers of that constraint
    weigh the average.

    $$ x_k \approx \arg\min_x\; f_k(x) + \lambda_k (\lVert x - z \rVert^2 - \gamma_k), \qquad
       \lambda_k \leftarrow \Pi_{[\lambda_{\min}, \lambda_{\max}]}\big(\lambda_k + \alpha (\lVert
       x_k - z \rVert^2 - \gamma_k)\big), \qquad z \leftarrow \frac{\sum_{k \in S} \lambda_k
       x_k}{\sum_{k \in S} \lambda_k} $$

    with the *new* multipliers as weights, and the tolerance learned by
    $\gamma_k \leftarrow \gamma_k + \alpha \lambda_k$ (the old multiplier). Local work starts at the
    client's own last model $x_k$ (Alg. 2, line 2), so that few steps a round suffice for the
    stationary point of eq. (10). If all multipliers of a cohort are zero, the default weights count
    instead of 0/0.

    The released code has `start="global", dual_momentum=0.5, dual_buffer="shared"`.

    Args:
        dual_lr: $\alpha$, at least 0.
        lam, gamma: the initial multiplier $\lambda_k^0$ and tolerance $\gamma_k$, one number or one
            per client; at least 0.
        learn_gamma: whether the tolerance is learned (App. E.1) or kept.
        start: "own" starts local work at the client's last model, "global" at z; with one step from
            z the multiplier drops out.
        lam_min, lam_max: the bounds, one number or one per client; the default is the released
            code's [0, infinity). `fedax.theory.fedbc.multiplier_bounds` has those of the analysis.
        dual_momentum: heavy ball of the dual steps, in [0, 1).
        dual_buffer: "own" moves a client's multiplier when it works; with "shared" the clients'
            dual steps follow each other, and each moves the multipliers of all others on by their
            momenta. "shared" needs a server that waits for its cohorts.

    Example:
        >>> import fedax
        >>> method = fedax.FedBC(dual_lr=1e-3)

    Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815), Alg. 1, 2,
    eq. (9), (11), (13).
    """

    lam: PerClient = hyper(0.0, low=0.0, per_client=True, doc="initial multipliers")
    gamma: PerClient = hyper(0.0, low=0.0, per_client=True, doc="initial tolerances")
    lam_min: PerClient = hyper(0.0, low=0.0, per_client=True, doc="lower bound of the multipliers")
    lam_max: PerClient = hyper(
        np.inf, low=0.0, per_client=True, doc="upper bound of the multipliers"
    )
    dual_lr: Scalar = hyper(1e-3, low=0.0, doc="step size of multipliers and tolerances")
    learn_gamma: bool = hyper(True, doc="whether tolerances are learned")
    start: str = hyper("own", choices=("own", "global"), doc="the model at which local work starts")
    dual_momentum: Scalar = hyper(
        0.0, low=0.0, high=1.0, open_high=True, doc="momentum of the dual steps"
    )
    dual_buffer: str = hyper(
        "own", choices=("own", "shared"), doc="whether dual steps of others move a multiplier on"
    )

    citation = Citation(
        paper="Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815)",
        read=("paper", "authors' code"),
        equation="Alg. 1, 2, eq. (9), (11), (13)",
        reductions=(
            Reduction(
                {"dual_lr": 0.0, "lam": 0.15, "start": "global"},
                "fedprox",
                {"mu": 0.3},
                equal_sizes=True,
            ),
        ),
    )

    def check(self, schedule: Schedule, sizes: Sequence[int]) -> None:
        if self.dual_buffer == "shared" and schedule.asynchronous is not None:
            # a late client has the order of the step at which it was dispatched
            allowed = "'own' with an asynchronous server, whose clients take no turns"
            raise InvalidInput.of("FedBC(dual_buffer=...)", self.dual_buffer, allowed)
        # a run has made arrays of mappings
        if np.any(np.greater(self.lam_min, self.lam_max)):  # type: ignore[arg-type]
            raise InvalidInput.of("FedBC(lam_min=...)", self.lam_min, "numbers up to lam_max")

    def init(self, fed: Federation, w: Vector) -> BeyondConsensusState:
        def initial_state(k: Int[Array, ""]) -> DualState:
            bounds = (entry(self.lam_min, k), entry(self.lam_max, k))
            lam = jnp.clip(entry(self.lam, k), *bounds).astype(w.dtype)
            gamma = entry(self.gamma, k).astype(w.dtype)
            zero = jnp.zeros_like(lam)
            return DualState(w, Multiplier(lam, gamma, zero, zero, jnp.int32(0)), zero)

        return BeyondConsensusState(w, fed.client_states(initial_state), jnp.int32(0))

    def round(self, fed: Federation, state: BeyondConsensusState) -> BeyondConsensusState:
        # the clock counts the dual steps of all clients in all rounds
        cohort = fed.sample()
        before = state.clock
        after = before + cohort.count
        turns = (Turns(before, after, cohort.ids),) if self.dual_buffer == "shared" else ()
        return BeyondConsensusState(
            *fed.average(self.primal_dual, cohort, state.w, *turns, states=state.clients), after
        )

    def primal(self, client: Client, z: Vector, x: Vector, lam: Float[Array, ""]) -> Vector:
        """Runs Alg. 2 from x."""
        return client.minimize(LocalProblem(anchor=z, prox=2 * lam), start=x)

    def primal_dual(self, client: Client, z: Vector, *turns_and_state: Any) -> Upload[Vector]:
        *turns, state = turns_and_state
        dual = state.dual
        bounds = (client.mine(self.lam_min), client.mine(self.lam_max))
        ascent = Ascent(self.dual_lr, self.dual_momentum, bounds, self.learn_gamma)
        # "shared": momenta move the multiplier until the client's turn, then until the round's end
        for turn in turns:
            dual = ascent.coast(dual, turn.steps_before(client))
        x = self.primal(client, z, state.x if self.start == "own" else z, dual.lam)
        dual = ascent.step(dual, ((x - z) ** 2).sum())
        for turn in turns:
            dual = ascent.coast(dual, turn.after)
        return Upload(
            x,
            weight=dual.lam,
            reference=z,
            state=DualState(x, dual, jnp.ones_like(state.visited)),
        )

    def weights(self, state: BeyondConsensusState) -> ClientStates:
        return state.clients.each(lambda client_state: client_state.dual.lam)

    def personal(self, state: BeyondConsensusState) -> Personal:
        return Personal(self.adapt, (state.w,), state.clients)

    def adapt(self, client: Client, z: Vector, state: DualState) -> Vector:
        """Returns the model that a client uses itself: its last one, or the global one before its
        first work.
        """
        return jnp.where(state.visited > 0, state.x, z)
