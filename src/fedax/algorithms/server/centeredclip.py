"""CenteredClip: changes are clipped around the last round's aggregate."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedax.algorithms.server.aggregation import MixedUploads
from fedax.core import (
    Citation,
    Client,
    ClientStates,
    Federation,
    Gathered,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
)
from fedax.numerics.robust import clip_rows, median_length
from fedax.utils.layout import accumulator


class ClipState(eqx.Module):
    """The global model, the last aggregate, and the clients' momenta (None without)."""

    w: Vector
    center: Vector
    momenta: ClientStates | None


class CenteredClip(MixedUploads[ClipState]):
    r"""Centered clipping: each change counts as far as $\tau$ from the last round's aggregate.

    $$ m_k \leftarrow (1 - \beta) (w_k - w) + \beta m_k, \qquad
       v \leftarrow v + \frac{1}{|S|} \sum_{k \in S} (m_k - v) \min \Big\{ 1,
       \frac{\tau}{\lVert m_k - v \rVert} \Big\} \text{ L times}, \qquad w \leftarrow w + v, $$

    from the aggregate v of the last round, 0 at first. What a hostile client does in a round is
    bounded by $L \tau / |S|$. Rules that look at one round alone cannot tell a small push in the
    same direction, round after round, from the noise of honest clients; momenta $m_k$ of the
    clients (worker momentum) make that noise small. A client's first momentum is its change. All
    clients count alike, however many examples they say they have.

    The paper has one gradient in place of local work, as with `Schedule(steps=1)`, and a fixed
    length as $\tau$ (`unit="one"`). Changes of models have no usual length: by default $\tau$ is in
    units of the median of $\lVert m_k - v \rVert$ over the cohort, with v of the last round. Of an
    even number it is the lower middle one.

    Args:
        tau: $\tau$, above 0; with a large one this is FedAvg with equal weights.
        unit: of $\tau$: "median" (of the cohort) or "one".
        iterations: L, at least 1.
        momentum: $\beta$, in [0, 1); above 0 every client stores its momentum.
        form: of the momentum: "as_written", or "as_released" without the factor $1 - \beta$, which
            makes momenta longer.

    Example:
        >>> import fedax
        >>> method = fedax.CenteredClip(tau=1.0, momentum=0.9)

    Source: Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML
    2021, as in the authors' code (github.com/epfml/byzantine-robust-optimizer,
    codes/aggregator/clipping.py and codes/simulators/worker.py), with local work in place of a
    gradient; the factor $1 - \beta$ as in github.com/LPD-EPFL/byzfl.
    """

    tau: Scalar = hyper(1.0, low=0.0, open_low=True, doc="length beyond which changes are clipped")
    unit: str = hyper("median", choices=("median", "one"), doc="the length that tau counts")
    iterations: int = hyper(1, low=1, doc="clipping iterations of a round")
    momentum: float = hyper(
        0.0, static=True, low=0.0, high=1.0, open_high=True, doc="momentum of the clients' changes"
    )
    form: str = hyper(
        "as_written",
        choices=("as_written", "as_released"),
        doc="whether a momentum has the factor 1 - momentum",
    )

    citation = Citation(
        paper="Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, "
        "ICML 2021",
        read=("authors' code",),
        reductions=(Reduction({"tau": 1e30}, "fedavg", equal_sizes=True),),
    )

    def init(self, fed: Federation, w: Vector) -> ClipState:
        state = (jnp.zeros_like(w), jnp.zeros((), w.dtype))
        return ClipState(w, jnp.zeros_like(w), fed.client_states(state) if self.momentum else None)

    def round(self, fed: Federation, state: ClipState) -> ClipState:
        cohort = fed.sample()
        momenta = state.momenta
        if momenta is None:
            uploads = fed.gather(self.train, cohort, state.w)
        else:
            uploads, momenta = fed.gather(self.train_momentum, cohort, state.w, states=momenta)
        center = self.clip(self.mix(uploads, state.center, fed.key("buckets")), state.center)
        return ClipState(state.w + center, center, momenta)

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        return Upload(client.minimize(start=w) - w, is_change=True)

    def train_momentum(
        self, client: Client, w: Vector, state: tuple[Vector, Float[Array, ""]]
    ) -> Upload[Vector]:
        m, is_known = state
        change = client.minimize(start=w) - w
        factor = 1 - self.momentum if self.form == "as_written" else 1.0
        m = jnp.where(is_known > 0, factor * change + self.momentum * m, change)
        return Upload(m, state=(m, jnp.ones_like(is_known)), is_change=True)

    def clip(self, uploads: Gathered[Vector], center: Vector) -> Vector:
        """Returns the new aggregate, from the uploads of a cohort and the last aggregate."""
        # half precision has no room for small factors
        wide = accumulator(center.dtype)
        shares = uploads.shares(jnp.ones_like(uploads.weights)).astype(wide)

        def offsets_from(v: Vector) -> Float[Array, "capacity dim"]:
            return jnp.where(uploads.valid[:, None], uploads.value - v[None], 0).astype(wide)

        unit = median_length(offsets_from(center), uploads.valid) if self.unit == "median" else 1
        tau = jnp.asarray(self.tau, wide) * unit

        def clip_step(_: Array, v: Vector) -> Vector:
            factors, offsets = clip_rows(offsets_from(v), tau)
            return v + ((shares * factors) @ offsets).astype(v.dtype)

        return jax.lax.fori_loop(0, self.iterations, clip_step, center)
