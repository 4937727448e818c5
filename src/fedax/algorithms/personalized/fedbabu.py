"""FedBABU: the head stays as it began, and every client fine-tunes for itself."""

from fedax.algorithms.personalized.fedper import FedPer
from fedax.algorithms.personalized.parted import Parts, PersonalVector, SharedVector
from fedax.core import Citation, Client, Personal, Reduction, Vector, hyper


class FedBABU(FedPer):
    r"""Federated averaging of the body with a head that nobody trains; clients fine-tune
    afterwards.

    With the body $\phi$ and the common head $h$ of the starting point:

    $$ \phi_i \leftarrow \text{local solver on } f_i(\cdot, h) \text{ from } \phi, \qquad
       \phi \leftarrow \frac{\sum_S p_i \phi_i}{\sum_S p_i}; \qquad \text{client i uses the local
       solver's } (\phi, h) \text{ from there, after the work of one round.} $$

    The head is neither sent nor trained in a round. Fine-tuning is the schedule's work by the whole
    model or by one part. It is the work of round 0 whenever it happens: at the first learning rate,
    with as many steps and the same minibatches. Batch statistics move with it. The published mean
    has equal weights (`weights="equal"`).

    Args:
        head: the leaves of the head, as in `FedPer`; without leaves (`()`) the rounds are FedAvg's.
        tuned: what fine-tuning trains: "all", "head" or "body".

    Example:
        >>> import fedax
        >>> method = fedax.FedBABU(head="out", tuned="head")

    Source: Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image
    Classification, ICLR 2022, as in the authors' code (github.com/jhoon-oh/FedBABU, main_fed.py
    with local_upt_part and aggr_part "body").
    """

    tuned: str = hyper("all", choices=("all", "head", "body"), doc="leaves that fine-tuning trains")

    citation = Citation(
        paper="Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image "
        "Classification, ICLR 2022",
        read=("authors' code",),
        reductions=(Reduction({"head": ()}, "fedavg"),),
    )

    def train_locally(self, client: Client, w: Vector) -> Vector:
        return client.minimize_only(self.personal_leaves(client.layout).others, w)

    def model(self, state: Parts) -> Vector:
        return state.whole  # the head in it is everybody's

    def personal(self, state: Parts) -> Personal:
        return Personal(self.fine_tune, (state.own.others.take(state.whole),), state.clients)

    def fine_tune(self, client: Client, shared: SharedVector, personal: PersonalVector) -> Vector:
        """Returns the client's model after fine-tuning."""
        w = self.join(client, shared, personal)
        head = self.personal_leaves(client.layout)
        if self.tuned == "all":
            return client.minimize(start=w)
        return client.minimize_only(head if self.tuned == "head" else head.others, w)
