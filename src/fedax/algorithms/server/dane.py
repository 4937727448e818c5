"""DANE: distributed approximate Newton, everybody in every round."""

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
)


class DANE(Algorithm[Vector]):
    r"""Everybody corrects its loss by the difference between the global gradient and its own.

    $$ w_k \approx \arg\min_v\; f_k(v) - \langle \nabla f_k(w) - \eta \nabla f(w), v \rangle
       + \frac{\mu}{2} \lVert v - w \rVert^2, \qquad w \leftarrow \sum_k p_k w_k . $$

    With `fedax.Exact()` as the solver this is DANE, with a few steps of any other inexact DANE
    (Reddi et al. 2016). On quadratics with exact solves each round multiplies the error by
    $I - \eta \sum_k p_k (A_k + \mu I)^{-1} A$. `FedDANE` does the same with drawn cohorts. The
    schedule's cohort is not used.

    Args:
        mu: $\mu$, at least 0.
        eta: $\eta$, above 0.

    Example:
        >>> import fedax
        >>> method = fedax.DANE(mu=0.1)

    Source: Shamir et al., Communication-Efficient Distributed Optimization using an Approximate
    Newton-type Method, ICML 2014, eq. (13), as the paper and the code of FedDANE state it (Li et
    al., 2019, eq. (2)), with $\eta = 1$.
    """

    mu: Scalar = hyper(0.0, low=0.0, doc="weight of the proximal term")
    eta: Scalar = hyper(1.0, low=0.0, open_low=True, doc="weight of the global gradient")

    citation = Citation(
        paper="Shamir et al., Communication-Efficient Distributed Optimization using an "
        "Approximate Newton-type Method, ICML 2014",
        read=("others' code",),
        equation="eq. (13)",
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        global_gradient = fed.average(gradient, fed.everyone, state)
        return fed.average(self.solve, fed.everyone, state, global_gradient)

    def solve(self, client: Client, w: Vector, global_gradient: Vector) -> Upload[Vector]:
        linear = self.eta * global_gradient - client.gradient(w)
        problem = LocalProblem(anchor=w, linear=linear, prox=self.mu)
        return Upload(client.minimize(problem, start=w))


def gradient(client: Client, w: Vector) -> Upload[Vector]:
    """Uploads the gradient at a model, the first phase of methods that correct local gradients."""
    return Upload(client.gradient(w))
