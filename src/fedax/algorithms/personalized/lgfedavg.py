"""LG-FedAvg: every client has lower layers of its own."""

from fedax.algorithms.personalized.fedper import FedPer
from fedax.core import Citation, Layout, Part, Reduction


class LGFedAvg(FedPer):
    r"""Local and global representations: the lower layers stay at each client, the head is
    averaged; FedPer the other way round.

    With client i's lower layers $\ell_i$ and the head g, trained together from the last ones:

    $$ (\ell_i, g_i) \leftarrow \text{local solver on } f_i(\ell, g) \text{ from } (\ell_i, g),
    \qquad
       g \leftarrow \frac{\sum_S p_i g_i}{\sum_S p_i}. $$

    The authors begin with some rounds of FedAvg, as `run(params=...)` can, and have equal weights
    (`weights="equal"`).

    Args:
        head: the leaves that are shared, as in `FedPer`; all others stay at each client. With every
            leaf (`"*"`) it is FedAvg.

    Example:
        >>> import fedax
        >>> method = fedax.LGFedAvg(head="out")

    Source: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global
    Representations, 2020 (arXiv:2001.01523), Alg. 1, as in the authors' code
    (github.com/pliang279/LG-FedAvg, main_lg.py).
    """

    citation = Citation(
        paper="Liang et al., Think Locally, Act Globally, arXiv:2001.01523",
        read=("authors' code",),
        equation="Alg. 1",
        reductions=(Reduction({"head": "*"}, "fedavg"),),
    )

    def personal_leaves(self, layout: Layout) -> Part:
        return super().personal_leaves(layout).others
