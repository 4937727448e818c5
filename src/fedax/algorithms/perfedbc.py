"""FedBC for personal models: fine-tuned, and meta-learned."""

import dataclasses
from typing import Any, ClassVar

import optax
from jaxtyping import Array, Float

from fedax.algorithms.fedbc import FedBC, Own
from fedax.core import Card, Client, Minibatch, Phase, Scalar, Vector, hyper


class FedBCFineTune(FedBC):
    r"""FedBC, of which each client uses its own model $x_k$ after one gradient step of size $\alpha$ on its first examples.

    Training and global model are FedBC's.

    Args:
        alpha: $\alpha$, at least 0.
        adapt_on: "train", or "test": the published evaluation adapts on labelled test examples, which flatters the method.
        adapt_batch: examples of the adapting step, at least 1.

    Example:
        >>> import fedax
        >>> method = fedax.FedBCFineTune(dual_lr=1e-3, alpha=0.01)

    Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815), Table 3.
    """

    alpha: Scalar = hyper(0.01, low=0.0, doc="size of the adapting step")
    adapt_on: str = hyper("train", choices=("train", "test"), doc="what clients adapt on when they use their model")
    adapt_batch: int = hyper(20, low=1, doc="examples of the adapting step")

    card: ClassVar[Card] = dataclasses.replace(FedBC.card, title="FedBCFineTune", equation="Table 3", reductions=())

    def adapt(self, client: Client, z: Vector, own: Own) -> Vector:
        return client.adapted(self.base(client, z, own), self.alpha, self.adapt_batch, self.adapt_on)  # type: ignore[arg-type]

    def base(self, client: Client, z: Vector, own: Own) -> Vector:
        """What is adapted."""
        return super().adapt(client, z, own)


class PerFedBC(FedBCFineTune):
    r"""Per-FedBC: FedBC whose local models are good one gradient step later.

    Each local step uses minibatches D, D' that follow each other in the epoch's order (first-order MAML):

    $$ u = x - \alpha \big(\nabla f_k(x; D) + 2 \lambda_k (x - z)\big), \qquad x \leftarrow x - \beta \nabla f_k(u; D'), $$

    with $\beta$ the solver's learning rate (0.001 in the paper's experiments); multipliers and average as FedBC. A client uses the
    *global* model after one step of size $\alpha$. Needs SGD without momentum as the solver.

    Args:
        alpha, adapt_on, adapt_batch: as `FedBCFineTune`.

    Example:
        >>> import fedax
        >>> method, solver = fedax.PerFedBC(dual_lr=1e-3), fedax.SGD(0.001)

    Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815), Alg. 3 (App. E.4).
    """

    card: ClassVar[Card] = Card(
        title="PerFedBC",
        paper=FedBC.card.paper,
        equation="Alg. 3 (App. E.4)",
        phases=(Phase("primal_dual", down=(1, 0), up=(1, 1), models=True),),
        memory=FedBC.card.memory,
    )

    def base(self, client: Client, z: Vector, own: Own) -> Vector:
        return z

    def gradients(self, steps: float, epoch: float) -> float:
        return 2 * steps

    def local(self, client: Client, z: Vector, lam: Float[Array, ""]) -> Vector:
        layout, rate, move = client.layout, client.learning_rate, optax.tree.add_scale
        centre = layout.unravel(z)

        def step(x: Any, inner: Minibatch, outer: Minibatch) -> Any:
            slope = move(inner.gradient(x), 2 * lam, optax.tree.sub(x, centre))
            return move(x, -rate, outer.gradient(move(x, -self.alpha, slope)))

        return layout.ravel(client.run(step, centre, batches=2))
