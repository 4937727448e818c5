"""FedAWARE: the shortest combination of the clients' momenta as the direction."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedax.algorithms.server import released
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Cohort,
    Federation,
    Scalar,
    Upload,
    Vector,
    hyper,
)
from fedax.numerics.gram import ClientVectors


class AwareState(eqx.Module):
    """The global model, all clients' momenta, the weights found last."""

    w: Vector
    momenta: ClientVectors
    weights: Float[Array, "clients"]


class FedAWARE(Algorithm[AwareState]):
    r"""Each client's update enters a momentum; the server steps along the momenta's convex
    combination of least norm.

    $$ g_i = x - x_i, \qquad m_i \leftarrow \alpha m_i + (1 - \alpha) g_i \; (i \in S), \qquad
       \lambda = \arg\min_{\lambda \in \Delta} \Big\lVert \sum_i \lambda_i m_i \Big\rVert^2, \qquad
       x \leftarrow x - \eta \sum_i \lambda_i m_i . $$

    The combination is over all clients seen so far: a client never seen has a momentum of zero,
    which would be the shortest. The Gram matrix is updated in the cohort's rows only.

    The released sampler returns a cohort sorted by id and remembers it in the order in which it was
    drawn. The server pairs the two, so that a client's momentum receives the update of another
    client of its cohort: of any client in the round in which everyone works. `ids="mixed"`
    reproduces that. Rounds that explore are paired correctly there from the second one on, because
    a Python set of small numbers lists them in ascending order.

    Notes: `gap`, the certificate of the solution; `diversity`,
    $\sqrt{\operatorname{mean}_S \lVert g_i \rVert^2} / \lVert \operatorname{mean}_S g_i \rVert$
    (Def. 3.1 over the cohort, as the code of 2024 logs it); `diversity_2023`,
    $\operatorname{mean}_S \lVert g_i \rVert / \lVert \operatorname{mean}_S g_i \rVert$, as the code
    of the paper's own time (October 2023) does.

    The code of 2023 has `normalize="unit", startup="explore", feedback=True, ids="mixed"`. Its
    scripts ask for `startup="all"` on CIFAR-10 and MNIST.

    Args:
        lr: $\eta$, above 0.
        alpha: how much of the old momentum stays, in [0, 1). The code has 1 - alpha in its place.
        normalize: "none", or "unit": $m_i / \lVert m_i \rVert$ in place of $m_i$ in the
            combination.
        startup: "seen"; "explore": clients not seen yet are drawn first, and until all are seen the
            step is FedAvg's; "all": everyone works in round 0 (the "non-error initialization" of
            the paper's Lemma B.1).
        feedback: whether clients are drawn by the weights found last; those of weight zero only
            fill up. As long as there are enough clients of positive weight, the others never work
            again, and their momenta stay as they are, so that their weights stay zero: on digits
            (50 clients, 10 a round, two shards of labels each or Dirichlet 0.1, 12 runs as
            released) 32 to 37 of them were not drawn once in 195 rounds after the start.
        ids: `"aligned"`, or `"mixed"`: momenta receive the updates of other clients, as released.
        shared: a diagnostic. `"updates"`: every client of a cohort receives its mean update;
            `"momenta"`: the mean of its new momenta; `"nothing"`: its own.

    Example:
        >>> import fedax
        >>> released = fedax.FedAWARE(normalize="unit", startup="all", feedback=True)

    Source: Zeng et al., Tackling Hybrid Heterogeneity on Federated Optimization via Gradient
    Diversity Maximization (arXiv:2310.02702), Alg. 1, eq. (8).
    """

    lr: Scalar = hyper(1.0, low=0.0, open_low=True, doc="server learning rate")
    alpha: Scalar = hyper(
        0.5, low=0.0, high=1.0, open_high=True, doc="part of the old momentum that stays"
    )
    normalize: str = hyper(
        "none", choices=("none", "unit"), doc="whether momenta are normalised in the combination"
    )
    startup: str = hyper(
        "seen", choices=("seen", "explore", "all"), doc="start, until every client was seen"
    )
    feedback: bool = hyper(False, doc="whether clients are drawn by the last weights")
    ids: str = hyper(
        "aligned", choices=("aligned", "mixed"), later=True, doc="whose momentum an update enters"
    )
    shared: str = hyper(
        "nothing",
        choices=("nothing", "updates", "momenta"),
        later=True,
        doc="what a cohort averages",
    )

    citation = Citation(
        paper="Zeng et al., Tackling Hybrid Heterogeneity on Federated Optimization via "
        "Gradient Diversity Maximization",
        read=("paper", "authors' code"),
        equation="Alg. 1, eq. (8)",
    )

    def init(self, fed: Federation, w: Vector) -> AwareState:
        momenta = ClientVectors.zeros(fed.clients, w)
        return AwareState(w, momenta, jnp.full(fed.clients, 1 / fed.clients, w.dtype))

    def round(self, fed: Federation, state: AwareState) -> AwareState:
        cohort = fed.sample(self.sampling_weights(state))
        if self.startup == "all":
            cohort = released.with_everyone_first(fed, cohort)
        uploads = fed.gather(self.train, cohort, state.w)
        if self.ids == "mixed":
            uploads = released.exchanged(uploads, self.rank_as_released(fed, state, cohort))
        updates = uploads.value
        if self.shared == "updates":
            updates = released.averaged(uploads, updates)
        rows = self.alpha * state.momenta.vectors[uploads.ids] + (1 - self.alpha) * updates
        if self.shared == "momenta":
            rows = released.averaged(uploads, rows)
        momenta = state.momenta.update(uploads, rows)
        direction, best = momenta.combine(start=state.weights, unit=self.normalize == "unit")
        if self.startup == "explore":
            direction = jnp.where(momenta.known.all(), direction, uploads.mean())
        fed.log(gap=best.gap, **released.diversity(uploads))
        return AwareState(state.w - self.lr * direction, momenta, best.weights)

    def sampling_weights(self, state: AwareState) -> Float[Array, "clients"] | None:
        """Returns the weights by which a cohort is drawn, first those not seen yet; None where the
        schedule draws it.
        """
        weights = state.weights if self.feedback else jnp.ones_like(state.weights)
        if self.startup == "explore":
            return jnp.where(
                state.momenta.known.all(), weights, 1 - state.momenta.known.astype(weights.dtype)
            )
        return weights if self.feedback else None

    def rank_as_released(
        self, fed: Federation, state: AwareState, cohort: Cohort
    ) -> Int[Array, "capacity"]:
        """Computes each client's rank in the order that the released sampler remembers."""
        ranks = released.drawing_order(fed, cohort, self.sampling_weights(state))
        exploring = (fed.round > 0) & ~state.momenta.known.all() & (self.startup == "explore")
        return jnp.where(exploring, cohort.ids, ranks)

    def train(self, client: Client, x: Vector) -> Upload[Vector]:
        return Upload(x - client.minimize(start=x))
