"""CoordinateMedian: the median of every coordinate in place of the mean."""

from fedax.algorithms.server.aggregation import Aggregation
from fedax.core import Citation, Gathered, Vector
from fedax.numerics.robust import sort_uploads


class CoordinateMedian(Aggregation):
    r"""Federated averaging with the coordinate-wise median of the clients' models.

    $$ w_k = \text{local solver on } f_k \text{ from } w, \qquad w^{(j)} \leftarrow
    \operatorname{med} \{ w_k^{(j)} : k \in S \} $$

    for every coordinate j; of an even number of models, the mean of the two in the middle. All
    clients count alike, however many examples they say they have. Fewer than half of the cohort
    cannot move a coordinate out of the range of the others. The published method has one full
    gradient in place of local work: `Schedule(steps=1, batch_size="full")` with `SGD`.

    Example:
        >>> import fedax
        >>> method = fedax.CoordinateMedian()

    Source: Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards
    Optimal Statistical Rates, ICML 2018, Def. 1 and Alg. 1, option I, as in
    github.com/epfml/byzantine-robust-optimizer (codes/aggregator/coordinatewise_median.py), which
    is not the authors' code.
    """

    citation = Citation(
        paper="Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning, ICML "
        "2018",
        read=("others' code",),
        equation="Def. 1, Alg. 1, option I",
    )

    def combine(self, uploads: Gathered[Vector], w: Vector) -> Vector:
        ordered, count = sort_uploads(uploads)
        return ordered[(count - 1) // 2] / 2 + ordered[count // 2] / 2  # the sum may be too large
