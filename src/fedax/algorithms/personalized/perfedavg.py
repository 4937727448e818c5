"""Per-FedAvg: a model that is good one gradient step later."""

from typing import Any

import optax

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    Minibatch,
    Personal,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class PerFedAvg(Algorithm[Vector]):
    r"""Federated averaging of the MAML objective $\sum_k p_k f_k(w - \alpha \nabla f_k(w))$.

    Each local step uses minibatches D, D', D'' that follow each other in the epoch's order:

    $$ u = w - \alpha \nabla f_k(w; D), \qquad
       w \leftarrow w - \beta \begin{cases} \nabla f_k(u; D') & \text{first-order} \\ (I - \alpha
       \nabla^2 f_k(w; D'')) \nabla f_k(u; D') & \text{Hessian-vector product} \end{cases} $$

    with $\beta$ the solver's learning rate (0.001 in the papers' experiments). A client uses the
    global model after one step of size $\alpha$ on its first 20 examples. $\alpha = 0$ is FedAvg.
    Needs SGD without momentum as the solver.

    Args:
        alpha: $\alpha$, at least 0.
        order: "first", or "second" for the Hessian-vector product.
        adapt_on: "train", or "test": the published evaluations adapt on labelled test examples,
            which flatters the method.

    Example:
        >>> import fedax
        >>> method, solver = fedax.PerFedAvg(alpha=0.01), fedax.SGD(0.001)

    Source: Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical Guarantees:
    A Model-Agnostic Meta-Learning Approach, NeurIPS 2020, Alg. 1, eq. (8) and Sec. 5, as in
    github.com/CharlieDinh/pFedMe (userperavg.py) and github.com/KarhouTam/FL-bench, which are not
    the authors' code.
    """

    alpha: Scalar = hyper(0.01, low=0.0, doc="size of the adapting step")
    order: str = hyper("first", choices=("first", "second"), doc="whether the Hessian is left out")
    adapt_on: str = hyper(
        "train", choices=("train", "test"), doc="examples on which clients adapt the model they use"
    )

    citation = Citation(
        paper="Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical "
        "Guarantees, NeurIPS 2020",
        read=("others' code",),
        equation="Alg. 1, eq. (8)",
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        return fed.average(self.train, fed.sample(), state)

    def personal(self, state: Vector) -> Personal:
        return Personal(self.adapt, (state,))

    def adapt(self, client: Client, w: Vector) -> Vector:
        return client.adapted(w, self.alpha, self.adapt_on)  # type: ignore[arg-type]

    def train(self, client: Client, w: Vector) -> Upload[Vector]:
        rate = client.plain_learning_rate
        add_scale = optax.tree.add_scale

        def step(
            w: Any, inner: Minibatch, outer: Minibatch, curvature: Minibatch | None = None
        ) -> Any:
            meta_gradient = outer.gradient(add_scale(w, -self.alpha, inner.gradient(w)))
            # times I - alpha H
            if curvature is not None:
                product = curvature.hessian_product(w, meta_gradient)
                meta_gradient = add_scale(meta_gradient, -self.alpha, product)
            return add_scale(w, -rate, meta_gradient)

        batches = 3 if self.order == "second" else 2
        return Upload(
            client.layout.ravel(client.for_each_minibatch(step, client.layout.unravel(w), batches)),
            reference=w,
        )
