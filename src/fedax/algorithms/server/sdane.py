"""S-DANE and Acc-S-DANE: DANE with stabilised prox-centers."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.algorithms.server.dane import gradient
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Cohort,
    Federation,
    LocalProblem,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class StabilizedState(eqx.Module):
    """The model w and the prox-center v."""

    w: Vector
    v: Vector


class SDANE(Algorithm[StabilizedState]):
    r"""DANE around a prox-center that moves along the gradients at the local solutions.

    With the cohort's weights, and $h_k = \nabla f_k(v) - \operatorname{mean}_S \nabla f_i(v)$:

    $$ x_k \approx \arg\min_x\; f_k(x) - \langle h_k, x \rangle + \frac{\lambda}{2} \lVert x - v
    \rVert^2, \qquad
       x \leftarrow \operatorname{mean}_S x_k, $$
    $$ v \leftarrow \frac{\mu x + \lambda v - \operatorname{mean}_S \nabla f_k(x_k)}{\mu + \lambda}.
    $$

    The same cohort takes part in both phases. The local problem may be solved roughly: the paper
    asks for $\lVert \nabla F_k(x_k) \rVert \le \frac{\lambda}{2} \lVert x_k - v \rVert$, which
    `Inexact` with gamma near 1 tests. The model is x.

    Args:
        lam: $\lambda$, above 0; about the second-order dissimilarity of the clients.
        mu: $\mu$, strong convexity of the clients' losses, at least 0.

    Example:
        >>> import fedax
        >>> method = fedax.SDANE(lam=1.0)

    Source: Jiang, Rodomanov and Stich, Stabilized Proximal-Point Methods for Federated
    Optimization, NeurIPS 2024, as in the authors' code (github.com/mlolab/S-DANE,
    src/optimizers/sdane.py).
    """

    lam: Scalar = hyper(1.0, low=0.0, open_low=True, doc="weight of the proximal term")
    mu: Scalar = hyper(0.0, low=0.0, doc="strong convexity of the clients' losses")

    citation = Citation(
        paper="Jiang, Rodomanov and Stich, Stabilized Proximal-Point Methods for Federated "
        "Optimization, NeurIPS 2024",
        read=("authors' code",),
    )

    def init(self, fed: Federation, w: Vector) -> StabilizedState:
        return StabilizedState(w, w)

    def round(self, fed: Federation, state: StabilizedState) -> StabilizedState:
        x, g = self.solutions(fed, fed.sample(), state.v)
        return StabilizedState(x, (self.mu * x + self.lam * state.v - g) / (self.mu + self.lam))

    def solutions(self, fed: Federation, cohort: Cohort, center: Vector) -> tuple[Vector, Vector]:
        """Returns the mean of the local solutions around a center, and the mean of the gradients
        there.
        """
        g = fed.average(gradient, cohort, center)
        return fed.average(self.solve, cohort, center, g)

    def solve(self, client: Client, center: Vector, g: Vector) -> Upload[tuple[Vector, Vector]]:
        problem = LocalProblem(anchor=center, linear=g - client.gradient(center), prox=self.lam)
        x = client.minimize(problem, start=center)
        return Upload((x, client.gradient(x)), reference=center)


class AcceleratedState(StabilizedState):
    """The model x, the sequence v, and the weights A and B of the estimating sequence."""

    a: Float[Array, ""]
    b: Float[Array, ""]


class AccSDANE(SDANE):
    r"""S-DANE with Nesterov's estimating sequences.

    From A = 0 and B = 1, in every round with the positive root a of $\lambda a^2 = (A + a) B$:

    $$ y = \frac{A x + a v}{A + a}, \qquad x \leftarrow \operatorname{mean}_S x_k \text{ of S-DANE
    around } y, \qquad
       v \leftarrow \frac{\mu a x + B v - a \operatorname{mean}_S \nabla f_k(x_k)}{\mu a + B}, $$
    $$ A \leftarrow A + a, \qquad B \leftarrow B + \mu a. $$

    Args:
        lam, mu: as in `SDANE`.

    Example:
        >>> import fedax
        >>> method = fedax.AccSDANE(lam=1.0)

    Source: as `SDANE`.
    """

    citation = SDANE.citation

    def init(self, fed: Federation, w: Vector) -> AcceleratedState:
        return AcceleratedState(w, w, jnp.zeros((), w.dtype), jnp.ones((), w.dtype))

    def round(self, fed: Federation, state: StabilizedState) -> AcceleratedState:
        assert isinstance(state, AcceleratedState), "a state of another method"
        x = state.w
        v = state.v
        total = state.a
        b = state.b
        # the positive root of lam a^2 = (total + a) b
        half = b / (2 * self.lam)
        a = half + jnp.sqrt(half**2 + total * b / self.lam)
        x, g = self.solutions(fed, fed.sample(), (total * x + a * v) / (total + a))
        v = (self.mu * a * x + b * v - a * g) / (self.mu * a + b)
        return AcceleratedState(x, v, total + a, b + self.mu * a)
