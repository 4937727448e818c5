"""FedRed: doubly regularised local steps with drift correction."""

from fedax.algorithms.server.dane import gradient
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    InvalidInput,
    LocalProblem,
    Scalar,
    Upload,
    Vector,
    hyper,
    scaled_gradient,
)


class FedRed(Algorithm[Vector]):
    r"""Local steps with two proximal terms: to the point before the step, and to the server's
    model.

    Every local step, with the drift correction
    $h_k = \nabla f_k(\tilde x) - \operatorname{mean}_S \nabla f_i(\tilde x)$:

    $$ x \leftarrow \arg\min_y\; \langle g_k(x) - h_k, y \rangle + \frac{1}{2 \eta} \lVert y - x
    \rVert^2
       + \frac{\lambda}{2} \lVert y - \tilde x \rVert^2
       = x - \frac{\eta}{1 + \eta \lambda} \big( g_k(x) - h_k + \lambda (x - \tilde x) \big), $$

    from the server's model $\tilde x$, with $\eta$ the learning rate of the solver, which is `SGD`;
    then $\tilde x \leftarrow \operatorname{mean}_S x_k$. The same cohort takes part in both phases.
    The paper's rounds have a geometric number of steps that all clients share,
    `Schedule(sync_probability=p)`. With local problems that are solved rather than a number of
    steps it is DANE+, which `FedDANE(cohorts="shared")` computes.

    Args:
        lam: $\lambda$, at least 0; about the second-order dissimilarity of the clients.

    Example:
        >>> import fedax
        >>> method, schedule = fedax.FedRed(lam=0.1), fedax.Schedule(sync_probability=0.1)

    Source: Jiang, Rodomanov and Stich, Federated Optimization with Doubly Regularized Drift
    Correction, ICML 2024, as in the authors' code (github.com/mlolab/S-DANE,
    src/optimizers/fedred.py: control variate 1, standard averaging).
    """

    lam: Scalar = hyper(0.1, low=0.0, doc="weight of the proximal term to the server's model")

    citation = Citation(
        paper="Jiang, Rodomanov and Stich, Federated Optimization with Doubly Regularized Drift "
        "Correction, ICML 2024",
        read=("authors' code",),
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        cohort = fed.sample()
        return fed.average(self.train, cohort, state, fed.average(gradient, cohort, state))

    def train(self, client: Client, x: Vector, g: Vector) -> Upload[Vector]:
        if client.solver.has_step_decay:
            allowed = '"round" for FedRed, whose implicit steps have one learning rate in a round'
            raise InvalidInput.found("run(solver=...), decay_by", "a decay in every step", allowed)
        # an implicit step on the proximal term is an explicit one with this factor on every term
        factor = 1 / (1 + client.nominal_learning_rate * self.lam)

        correction = factor * (g - client.gradient(x))
        problem = LocalProblem(
            anchor=x,
            linear=correction,
            prox=factor * self.lam,
            step_gradient=scaled_gradient(factor),
        )
        return Upload(client.minimize(problem, start=x))
