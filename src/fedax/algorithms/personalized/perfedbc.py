"""FedBC for personal models: fine-tuned, and meta-learned."""

import dataclasses
from typing import Any

import optax
from jaxtyping import Array, Float

from fedax.algorithms.server.fedbc import DualState, FedBC
from fedax.core import Client, Minibatch, Scalar, Vector, hyper


class FedBCFineTune(FedBC):
    r"""FedBC, of which each client uses its own model $x_k$ after one gradient step of size
    $\alpha$ on its first 20 examples.

    Training and global model are FedBC's.

    Args:
        alpha: $\alpha$, at least 0.
        adapt_on: "train", or "test": the published evaluation adapts on labelled test examples,
            which flatters the method.

    Example:
        >>> import fedax
        >>> method = fedax.FedBCFineTune(dual_lr=1e-3, alpha=0.01)

    Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815), Table 3.
    """

    alpha: Scalar = hyper(0.01, low=0.0, doc="size of the adapting step")
    adapt_on: str = hyper(
        "train", choices=("train", "test"), doc="examples that clients adapt their own model on"
    )

    citation = dataclasses.replace(FedBC.citation, equation="Table 3", reductions=())

    def adapt(self, client: Client, z: Vector, state: DualState) -> Vector:
        start = self.model_to_adapt(client, z, state)
        return client.adapted(start, self.alpha, self.adapt_on)  # type: ignore[arg-type]

    def model_to_adapt(self, client: Client, z: Vector, state: DualState) -> Vector:
        """Returns the model to adapt."""
        return super().adapt(client, z, state)


class PerFedBC(FedBCFineTune):
    r"""Per-FedBC: FedBC whose local models are good some gradient steps later.

    Each local step takes J inner steps and one outer step (first-order MAML) on minibatches
    $D_0, \dots, D_J$ that follow each other in the epoch's order:

    $$ u_0 = x, \qquad u_{j+1} = u_j - \alpha \big(\nabla f_k(u_j; D_j) + 2 \lambda_k (u_j -
    z)\big), \qquad
       x \leftarrow x - \beta \nabla f_k(u_J; D_J), $$

    with $\beta$ the solver's learning rate (0.001 in the paper's experiments); multipliers and
    average as FedBC. Local work starts at z (Alg. 3, line 5). A client uses the *global* model
    after one step of size $\alpha$. Needs SGD without momentum as the solver.

    Args:
        alpha, adapt_on: as `FedBCFineTune`.
        inner_steps: J, at least 1; 1 in the paper's experiments.
        start: as `FedBC`, but by default "global".

    Example:
        >>> import fedax
        >>> method, solver = fedax.PerFedBC(dual_lr=1e-3), fedax.SGD(0.001)

    Source: Bedi et al., FedBC: Federated Learning Beyond Consensus (arXiv:2206.10815), Alg. 3 (App.
    E.4).
    """

    inner_steps: int = hyper(1, low=1, doc="inner gradient steps of every local step")
    start: str = hyper(
        "global", choices=("own", "global"), doc="the model at which local work starts"
    )

    citation = dataclasses.replace(FedBC.citation, equation="Alg. 3 (App. E.4)", reductions=())

    def model_to_adapt(self, client: Client, z: Vector, state: DualState) -> Vector:
        return z

    def primal(self, client: Client, z: Vector, x: Vector, lam: Float[Array, ""]) -> Vector:
        layout = client.layout
        rate = client.plain_learning_rate
        add_scale = optax.tree.add_scale
        centre = layout.unravel(z)

        def step(x: Any, *batches: Minibatch) -> Any:
            u = x
            for inner in batches[:-1]:
                u = add_scale(
                    u, -self.alpha, add_scale(inner.gradient(u), 2 * lam, optax.tree.sub(u, centre))
                )
            return add_scale(x, -rate, batches[-1].gradient(u))

        return layout.ravel(
            client.for_each_minibatch(step, layout.unravel(x), batches=self.inner_steps + 1)
        )
