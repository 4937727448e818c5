"""FedBC: federated learning beyond consensus."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.core import (
    Algorithm,
    Card,
    Client,
    Federation,
    Local,
    Memory,
    Personal,
    Phase,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class Own(eqx.Module):
    """One client's memory: its model, multiplier and tolerance, the momenta of the latter two, and whether it ever worked."""

    x: Vector
    lam: Float[Array, ""]
    gamma: Float[Array, ""]
    lam_speed: Float[Array, ""]
    gamma_speed: Float[Array, ""]
    visited: Float[Array, ""]


class BeyondConsensusState(eqx.Module):
    """The global model and the clients' memories."""

    z: Vector
    memory: Memory


class FedBC(Algorithm[BeyondConsensusState]):
    r"""Local models may differ from the global one by a tolerance; multipliers of that constraint weigh the average.

    $$ x_k \approx \arg\min_x\; f_k(x) + \lambda_k (\lVert x - z \rVert^2 - \gamma_k), \qquad
       \lambda_k \leftarrow \Pi_{[\lambda_{\min}, \lambda_{\max}]}\big(\lambda_k + \alpha (\lVert x_k - z \rVert^2 - \gamma_k)\big),
       \qquad z \leftarrow \frac{\sum_{k \in S} \lambda_k x_k}{\sum_{k \in S} \lambda_k} $$

    with the *new* multipliers as weights, and the tolerance learned by $\gamma_k \leftarrow \gamma_k + \alpha \lambda_k$ (the old
    multiplier). Local work starts at z, as the released code does (Alg. 2 starts at $x_k$). If all multipliers of a cohort are
    zero, the default weights count instead of 0/0.

    Args:
        dual_lr: $\alpha$, at least 0.
        lam: the initial multiplier of every client, at least 0.
        gamma: the initial tolerance of every client, at least 0.
        learn_gamma: whether the tolerance is learned (Sec. 5) or kept.
        lam_min, lam_max: bounds of the multipliers; the paper names them without numbers, the code has [0, infinity).
        dual_momentum: heavy ball of each client's own dual steps, in [0, 1). The released code has 0.5, but one buffer over all
            clients that also moves those not at work; here a client's buffer moves when it works.

    Example:
        >>> import fedax
        >>> method = fedax.FedBC(dual_lr=1e-3)

    Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815), Alg. 1, eq. (9), (11), (13).
    """

    dual_lr: Scalar = hyper(1e-3, low=0.0, doc="step size of multipliers and tolerances")
    lam: Scalar = hyper(0.0, low=0.0, doc="initial multipliers")
    gamma: Scalar = hyper(0.0, low=0.0, doc="initial tolerances")
    learn_gamma: bool = hyper(True, doc="whether tolerances are learned")
    lam_min: Scalar = hyper(0.0, low=0.0, doc="lower bound of the multipliers")
    lam_max: Scalar = hyper(float("inf"), low=0.0, doc="upper bound of the multipliers")
    dual_momentum: Scalar = hyper(0.0, low=0.0, high=1.0, open_high=True, doc="momentum of the dual steps")

    card: ClassVar[Card] = Card(
        title="FedBC",
        paper="Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815)",
        equation="Alg. 1, eq. (9), (11), (13)",
        phases=(Phase("primal_dual", down=(1, 0), up=(1, 1), models=True),),
        memory="model, multiplier, tolerance and their momenta: dim + 5 numbers",
        reductions=(Reduction({"dual_lr": 0.0, "lam": 0.15}, "fedprox", {"mu": 0.3}, equal_sizes=True),),
    )

    def init(self, fed: Federation, w: Vector) -> BeyondConsensusState:
        lam, gamma, rest = (jnp.asarray(value, w.dtype) for value in (self.lam, self.gamma, 0.0))
        return BeyondConsensusState(w, fed.memory(Own(w, lam, gamma, rest, rest, rest)))

    def round(self, fed: Federation, state: BeyondConsensusState) -> BeyondConsensusState:
        return BeyondConsensusState(*fed.average(self.primal_dual, fed.sample(), state.z, memory=state.memory))

    def model(self, state: BeyondConsensusState) -> Vector:
        return state.z

    def personal(self, state: BeyondConsensusState) -> Personal:
        return Personal(self.adapt, (state.z,), state.memory)

    def weights(self, state: BeyondConsensusState) -> Memory:
        return state.memory.each(lambda own: own.lam)

    def adapt(self, client: Client, z: Vector, own: Own) -> Vector:
        """The model that a client uses itself: its last one, or the global one before its first work."""
        return jnp.where(own.visited > 0, own.x, z)

    def local(self, client: Client, z: Vector, lam: Float[Array, ""]) -> Vector:
        """The primal step from z."""
        return client.minimize(Local(anchor=z, prox=2 * lam), start=z)

    def primal_dual(self, client: Client, z: Vector, own: Own) -> Upload[Vector]:
        x = self.local(client, z, own.lam)
        lam_speed = self.dual_momentum * own.lam_speed + ((x - z) ** 2).sum() - own.gamma
        gamma_speed = self.dual_momentum * own.gamma_speed + own.lam
        lam = jnp.clip(own.lam + self.dual_lr * lam_speed, self.lam_min, self.lam_max)
        gamma = own.gamma + self.dual_lr * gamma_speed if self.learn_gamma else own.gamma
        return Upload(x, weight=lam, memory=Own(x, lam, gamma, lam_speed, gamma_speed, jnp.ones_like(lam)))
