"""FedRoD: a generic predictor trained against skewed classes, and a personal one on top of it."""

from typing import Any

from fedax.algorithms.personalized.fully_averaged import FullyAveraged
from fedax.algorithms.personalized.parted import Parts, PersonalVector
from fedax.algorithms.server.fedlc import class_frequencies, weighted_softmax_gradient
from fedax.algorithms.server.on_classes import has_classes
from fedax.core import (
    Citation,
    Client,
    Layout,
    Minibatch,
    Personal,
    Reduction,
    Task,
    Upload,
    Vector,
    Which,
    hyper,
)


class FedRoD(FullyAveraged):
    r"""Two heads on one body: the generic one is averaged, and each client adds its own head's
    logits to it.

    In every local step, with the client's class frequencies $\pi$, body $\phi$, generic head $h$
    and personal head $q$:

    $$ (\phi, h) \leftarrow (\phi, h) - \eta \nabla\, \ell\big( z(\phi, h) + \log \pi,\; y \big),
    \qquad
       q \leftarrow q - \eta \nabla_q\, \ell\big( z(\phi, h) + z(\phi, q),\; y \big), $$

    where z are logits and $\ell$ is the cross entropy; the first is the balanced softmax. The
    second step moves q alone. Body and generic head are averaged and are the global model; a client
    uses the sum of the logits. The head has to be linear in its parameters, so that a sum of heads
    is the sum of logits. Personal heads begin as the generic one. Tasks without integer labels y
    and class probabilities train the generic part on their own loss. Needs SGD without momentum as
    the solver.

    Args:
        head: the leaves of the head, as in `FedPer`.

    Example:
        >>> import fedax
        >>> method = fedax.FedRoD(head="out")

    Source: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image
    Classification, ICLR 2022 (Fed-RoD, linear heads), as in public implementations derived from
    PFLlib.
    """

    head: Which = hyper(
        "last", leaves=True, doc="leaves of which each client has a second, personal set"
    )

    citation = Citation(
        paper="Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image "
        "Classification, ICLR 2022",
        read=("abstract", "others' code"),
        reductions=(Reduction({"head": ()}, "fedavg"), Reduction({"head": "*"}, "fedavg")),
    )

    def check_model(self, task: Task, layout: Layout) -> None:
        super().check_model(task, layout)
        task.require_no_state("FedRoD")

    def personal(self, state: Parts) -> Personal:
        return Personal(self.sum_heads, (state.whole,), state.clients)

    def sum_heads(self, client: Client, w: Vector, personal: PersonalVector) -> Vector:
        """Returns the model whose logits are the sum of the two heads'."""
        leaves = self.personal_leaves(client.layout)
        return leaves.put(w, leaves.take(w) + personal)

    def train(self, client: Client, shared: Vector, personal: PersonalVector) -> Upload[Vector]:
        rate = client.plain_learning_rate
        layout = client.layout
        leaves = self.personal_leaves(layout)
        generic = generic_gradient(client, shared)

        def step(
            carry: tuple[Vector, PersonalVector], batch: Minibatch
        ) -> tuple[Vector, PersonalVector]:
            w, personal = carry
            # this loss trains the client's part only; the shared model is a constant in it
            own = layout.unravel(self.sum_heads(client, w, personal))
            gradient = leaves.take(layout.ravel(batch.gradient(own)))
            w = w - rate * layout.ravel(generic(batch, layout.unravel(w)))
            return w, personal - rate * gradient

        trained, personal = client.for_each_minibatch(step, (shared, personal))
        return Upload(trained, reference=shared, state=personal)


def generic_gradient(client: Client, w: Vector) -> Any:
    """Returns `(minibatch, params) -> gradient` of the balanced softmax, or of the task's loss
    where there are no classes.
    """
    if not has_classes(client.task):
        return lambda batch, params: batch.gradient(params)
    return weighted_softmax_gradient(client, class_frequencies(client, w))
