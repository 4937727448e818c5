"""FedRep: every client fits a head of its own to a shared representation, then moves the
representation.
"""

from fedax.algorithms.personalized.fedper import FedPer
from fedax.core import Citation, Client, Reduction, Vector, hyper


class FedRep(FedPer):
    r"""Shared representations: first the head is trained on the received body, then the body with
    the new head.

    $$ h_i \leftarrow \text{local solver on } f_i(\phi, \cdot) \text{ from } h_i, \qquad
       \phi_i \leftarrow \phi - \eta \nabla_\phi f_i(\phi, h_i), \qquad
       \phi \leftarrow \frac{\sum_S p_i \phi_i}{\sum_S p_i}. $$

    The head takes the steps of the schedule, and the body one step on all the client's examples
    (`body="step"`, which needs SGD without momentum), or as many minibatch steps as the head
    (`body="work"`, with any solver). The published mean has equal weights (`weights="equal"`).

    Args:
        head: the leaves of the head, as in `FedPer`.
        body: "step", or "work" as experiments train it.

    Example:
        >>> import fedax
        >>> method = fedax.FedRep(head="out", body="work")

    Source: Collins, Hassani, Mokhtari and Shakkottai, Exploiting Shared Representations for
    Personalized Federated Learning, ICML 2021 (arXiv:2102.07078), Alg. 1, and the authors' code
    (github.com/lgcollins/FedRep), which has `body="work"` and weights by size.
    """

    body: str = hyper("step", choices=("step", "work"), doc="steps of the body")

    citation = Citation(
        paper="Collins, Hassani, Mokhtari and Shakkottai, Exploiting Shared Representations, "
        "ICML 2021",
        read=("authors' code",),
        equation="Alg. 1",
        reductions=(Reduction({"head": (), "body": "work"}, "fedavg"),),
    )

    def train_locally(self, client: Client, w: Vector) -> Vector:
        head = self.personal_leaves(client.layout)
        w = client.minimize_only(head, w)
        body = head.others
        if self.body == "work":
            return client.minimize_only(body, w)
        return body.put(w, body.take(w - client.plain_learning_rate * client.gradient(w)))
