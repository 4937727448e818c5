"""Mime and MimeLite: the server's momentum in every local step."""

import dataclasses
from typing import Any

import optax

from fedax.algorithms.server.dane import gradient
from fedax.algorithms.server.fedcm import FedCM, MomentumState
from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Cohort,
    Federation,
    LocalProblem,
    Minibatch,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class MimeLite(Algorithm[MomentumState]):
    r"""Local steps use the server's momentum, which only full gradients of the cohort at the global
    model change.

    $$ x_k \leftarrow x_k - \eta \big( g_k(x_k) + \beta m \big) \text{ in every step}, \qquad
       w \leftarrow w + \eta_g \operatorname{mean}_S (x_k - w), \qquad
       m \leftarrow \beta m + \operatorname{mean}_S \nabla f_k(w) \text{ at the old } w. $$

    The paper mimics any optimizer; here it is SGD with heavy-ball momentum, in the form of Optax.
    With $\beta$ near 1 the local learning rate has to be smaller than FedAvg's, by about
    $1 - \beta$.

    Args:
        momentum: $\beta$, in [0, 1).
        lr: $\eta_g$, above 0.

    Example:
        >>> import fedax
        >>> method = fedax.MimeLite(momentum=0.9)

    Source: Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms in Federated
    Learning, 2020 (arXiv:2008.03606), as in FedJAX (fedjax/algorithms/mime_lite.py), which an
    author of the paper took part in.
    """

    momentum: Scalar = hyper(
        0.9, low=0.0, high=1.0, open_high=True, doc="heavy-ball momentum of the mimicked optimizer"
    )
    lr: Scalar = hyper(1.0, low=0.0, open_low=True, doc="server learning rate")

    citation = Citation(
        paper="Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms in Federated "
        "Learning, arXiv:2008.03606",
        read=("authors' code",),
        reductions=(Reduction({"momentum": 0.0}, "fedavg"),),
    )

    init = FedCM.init

    def round(self, fed: Federation, state: MomentumState) -> MomentumState:
        cohort = fed.sample()
        w = state.w
        g = fed.average(gradient, cohort, w)
        x = self.train_cohort(fed, cohort, w, self.momentum * state.m, g)
        return MomentumState(w + self.lr * (x - w), self.momentum * state.m + g)

    def train_cohort(
        self, fed: Federation, cohort: Cohort, w: Vector, push: Vector, g: Vector
    ) -> Vector:
        """Returns the mean of the cohort's local models."""
        return fed.average(self.train, cohort, w, push)

    def train(self, client: Client, w: Vector, push: Vector) -> Upload[Vector]:
        return Upload(client.minimize(LocalProblem(linear=push), start=w))


class Mime(MimeLite):
    r"""As `MimeLite`, with gradients that the difference between global and local ones corrects.

    $$ x_k \leftarrow x_k - \eta \big( g_B(x_k) - g_B(w) + \operatorname{mean}_S \nabla f_i(w) +
    \beta m \big) $$

    with both gradients on the step's minibatch B. The server's steps are those of `MimeLite`.

    Args:
        momentum, lr: as in `MimeLite`.

    Example:
        >>> import fedax
        >>> method = fedax.Mime(momentum=0.9)

    Source: as `MimeLite`, and fedjax/algorithms/mime.py.
    """

    citation = dataclasses.replace(MimeLite.citation, reductions=())

    def train_cohort(
        self, fed: Federation, cohort: Cohort, w: Vector, push: Vector, g: Vector
    ) -> Vector:
        return fed.average(self.corrected, cohort, w, push + g)

    def corrected(self, client: Client, w: Vector, push: Vector) -> Upload[Vector]:
        start = client.layout.unravel(w)

        def gradient_difference(batch: Minibatch, params: Any) -> Any:
            return optax.tree.sub(batch.gradient(params), batch.gradient_aside(start))

        problem = LocalProblem(linear=push, step_gradient=gradient_difference)
        return Upload(client.minimize(problem, start=w))
