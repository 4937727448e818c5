"""FedPer: every client has a head of its own."""

from fedax.algorithms.personalized.parted import Parted
from fedax.core import Citation, Reduction, Which, hyper


class FedPer(Parted):
    r"""Federated learning with personalization layers: the body is averaged, the head stays at each
    client.

    With the body $\phi$ and client i's head $h_i$, trained together from the last ones:

    $$ (\phi_i, h_i) \leftarrow \text{local solver on } f_i(\phi, h) \text{ from } (\phi, h_i),
    \qquad
       \phi \leftarrow \frac{\sum_S p_i \phi_i}{\sum_S p_i}. $$

    The head is neither sent nor counted. The global model has the mean of all heads.

    Args:
        head: the leaves of the head: names or parts of them, with `*` for any text, or a predicate
            of name and array; `"last"` is the last layer of models whose layers are in order.
            Without leaves (`()`) it is FedAvg, with all (`"*"`) training alone.

    Example:
        >>> import fedax
        >>> method = fedax.FedPer(head=["dense2", "out"])

    Source: Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with Personalization
    Layers, 2019 (arXiv:1912.00818), Alg. 1 and 2, as in github.com/TsingZ0/PFLlib (clientper.py,
    serverper.py), which is not the authors' code.
    """

    head: Which = hyper("last", leaves=True, doc="leaves that stay at each client")

    citation = Citation(
        paper="Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with "
        "Personalization Layers, arXiv:1912.00818",
        read=("others' code",),
        equation="Alg. 1 and 2",
        reductions=(Reduction({"head": ()}, "fedavg"),),
    )
