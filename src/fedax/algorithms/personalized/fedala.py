"""FedALA: every client learns how much of the global head it takes over before it trains."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedax.algorithms.personalized.fully_averaged import FullyAveraged
from fedax.algorithms.personalized.parted import Parts, PersonalVector
from fedax.algorithms.personalized.settling import repeat_until_settled
from fedax.core import (
    Citation,
    Client,
    Federation,
    Layout,
    Minibatch,
    Personal,
    Reduction,
    Scalar,
    Task,
    Upload,
    Vector,
    Which,
    hyper,
)


class Blend(eqx.Module):
    """One client's state: its last trained head, the weights of the global one, and the rounds in
    which it took part.
    """

    head: PersonalVector
    weights: PersonalVector
    rounds: Int[Array, ""]


class FedALA(FullyAveraged):
    r"""FedAvg whose clients start from a learned mixture of the global head and their last one.

    This is adaptive local aggregation.

    With the head's global parameters $\phi$, the client's last ones $\phi_i$, and weights
    $W_i \in [0, 1]$ for each of them, ones at first:

    $$ \hat\phi_i = \phi_i + (\phi - \phi_i) \odot W_i, \qquad
       W_i \leftarrow \Pi_{[0, 1]}\big( W_i - \eta\, \nabla_{\hat\phi} f_i \odot (\phi - \phi_i)
       \big) \text{ in every step}. $$

    Then the client trains its whole model from $\hat\phi_i$ and the other leaves of the global
    model, and uploads all of it. The steps of $W_i$ are a pass over a part of the minibatches of
    the round's first epoch. In the second round of a client passes are repeated until the standard
    deviation of the last 10 of their losses is below a threshold. In its first round a client takes
    the global model as it is. Personal models are those that the clients would train from next.

    Args:
        head: the leaves that are mixed, as in `FedPer`; the paper's top p layers. Without leaves
            (`()`) it is FedAvg.
        weight_lr: $\eta$, at least 0; 0 is FedAvg.
        share: the part of a client's examples that the weights are learned on, in (0, 1], in whole
            minibatches and at least one.
        passes: the most passes in a client's second round, at least 1.
        threshold: of the standard deviation, at least 0.

    Example:
        >>> import fedax
        >>> method = fedax.FedALA(head="out", share=0.8)

    Source: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning,
    AAAI 2023, as in the authors' code (github.com/TsingZ0/FedALA, utils/ALA.py), where all clients
    mix in every round, drawn or not.
    """

    head: Which = hyper("last", leaves=True, doc="leaves that each client mixes")
    weight_lr: Scalar = hyper(1.0, low=0.0, doc="learning rate of the weights")
    share: Scalar = hyper(
        0.8, low=0.0, open_low=True, high=1.0, doc="part of the examples for the weights"
    )
    passes: int = hyper(100, low=1, high=10_000, doc="most passes in a client's second round")
    threshold: Scalar = hyper(0.1, low=0.0, doc="deviation of losses that ends the passes")

    citation = Citation(
        paper="Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated "
        "Learning, AAAI 2023",
        read=("authors' code",),
        reductions=(
            Reduction({"head": ()}, "fedavg"),
            Reduction({"head": "*", "weight_lr": 0.0}, "fedavg"),
        ),
    )

    def check_model(self, task: Task, layout: Layout) -> None:
        # all leaves may be mixed, so that what the parent refuses is allowed
        task.require_no_state("FedALA")

    def init(self, fed: Federation, w: Vector) -> Parts:
        leaves = self.personal_leaves(fed.layout)
        head = leaves.take(w)
        return Parts(w, fed.client_states(Blend(head, jnp.ones_like(head), jnp.int32(0))), leaves)

    def personal(self, state: Parts) -> Personal:
        return Personal(self.starting_model, (state.whole,), state.clients)

    def starting_model(self, client: Client, w: Vector, state: Blend) -> Vector:
        """Returns the model that the client would train from."""
        return self.aggregate_locally(client, w, state)[0]

    def train(self, client: Client, shared: Vector, state: Blend) -> Upload[Vector]:  # type: ignore[override]
        leaves = self.personal_leaves(client.layout)
        start, weights = self.aggregate_locally(client, shared, state)
        w = client.minimize(start=start)
        return Upload(w, reference=shared, state=Blend(leaves.take(w), weights, state.rounds + 1))

    def aggregate_locally(
        self, client: Client, w: Vector, state: Blend
    ) -> tuple[Vector, PersonalVector]:
        """Returns the model that the client trains from, and the learned weights."""
        layout = client.layout
        leaves = self.personal_leaves(layout)
        # without a head of its own, in the first round, the client starts at the global model
        gap = jnp.where(state.rounds > 0, leaves.take(w) - state.head, 0)

        def mix_head(weights: PersonalVector) -> Vector:
            # the global head exactly where the weight is 1
            return leaves.put(w, leaves.take(w) - gap * (1 - weights))

        def step(
            weights: PersonalVector, batch: Minibatch
        ) -> tuple[PersonalVector, Float[Array, ""]]:
            params = layout.unravel(mix_head(weights))
            head_gradient = leaves.take(layout.ravel(batch.gradient(params)))
            weights = jnp.clip(weights - self.weight_lr * head_gradient * gap, 0, 1)
            return weights, batch.loss(params)

        weights = repeat_until_settled(
            client,
            step,
            state.weights,
            share=self.share,
            # the second round of a client goes on until its weights have settled
            max_passes=jnp.where(state.rounds == 1, self.passes, 1),
            threshold=self.threshold,
        )
        return mix_head(weights), weights
