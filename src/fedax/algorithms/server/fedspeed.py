"""FedSpeed: a proximal term with its correction, and gradients from points nearby."""

from fedax.algorithms.server.fedvarp import FedVARP, LastChanges
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    LocalProblem,
    Scalar,
    Upload,
    Vector,
    hyper,
    sharp_gradient,
)


class FedSpeed(Algorithm[LastChanges]):
    r"""Sharpness-aware local steps with a proximal term whose bias a memory of past changes takes
    away.

    From the server's model w, with $\tilde g_B$ as in `FedSAM` and the client's correction $h_k$,
    zero at first:

    $$ x_k \leftarrow x_k - \eta \big( \tilde g_B(x_k) + \lambda (x_k - w + h_k) \big) \text{ in
    every step}, \qquad
       h_k \leftarrow h_k + x_k - w, \qquad w \leftarrow \operatorname{mean}_S x_k + \sum_i p_i h_i.
       $$

    The second sum is over all clients, also those that did not work, as in the first author's code.
    A server that averages $x_k + h_k$ over S alone, as Alg. 1 of the paper is said to, is another
    method unless everyone works. The code has equal weights there and in the mean
    (`weights="equal"`). Here they are those of the objective, with each
    client of S once.

    Args:
        lam: $\lambda$, at least 0.
        rho: $\rho$ of the gradients, at least 0.

    Example:
        >>> import fedax
        >>> method = fedax.FedSpeed(lam=0.1, rho=0.1)

    Source: Sun et al., FedSpeed: Larger Local Interval, Less Communication Round, and Higher
    Generalization Accuracy, ICLR 2023, as in the first author's code
    (github.com/woodenchild95/FL-Simulator).
    """

    lam: Scalar = hyper(0.1, low=0.0, doc="weight of the proximal term")
    rho: Scalar = hyper(0.1, low=0.0, doc="distance of the point whose gradient is taken")

    citation = Citation(
        paper="Sun et al., FedSpeed: Larger Local Interval, Less Communication Round, Higher "
        "Generalization Accuracy, ICLR 2023",
        read=("authors' code",),
    )

    init = FedVARP.init

    def round(self, fed: Federation, state: LastChanges) -> LastChanges:
        (x, change), states = fed.average(
            self.train, fed.sample().distinct, state.w, states=state.clients
        )
        mean = state.mean + fed.answered.coverage * change
        return LastChanges(x + mean, mean, states)

    def train(self, client: Client, w: Vector, h_k: Vector) -> Upload[tuple[Vector, Vector]]:
        problem = LocalProblem(
            anchor=w, linear=self.lam * h_k, prox=self.lam, step_gradient=sharp_gradient(self.rho)
        )
        x = client.minimize(problem, start=w)
        return Upload((x, x - w), state=h_k + x - w)
