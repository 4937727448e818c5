"""FedAvgM, FedAdam, FedYogi, FedAdagrad: FedAvg with a published server optimizer."""

import jax.numpy as jnp
import optax

from fedax.algorithms.server.fedavg import FedAvg
from fedax.core import Citation, Reduction, Scalar, Vector, hyper

REDDI = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"


class FedAvgM(FedAvg):
    r"""Server momentum: $v \leftarrow \beta v + \Delta,\; w \leftarrow w - \eta v$ with
    $\Delta = w - \bar w$ and v = 0 at first.

    No factor $1 - \beta$ (the variant of Hsu et al.; an Optax SGD with momentum).

    Args:
        lr: $\eta$, above 0.
        momentum: $\beta$, in [0, 1).

    Source: Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification, 2019, Sec. 4, as in others' code (github.com/Divyansh03/FedExP, main.py).
    """

    lr: Scalar = hyper(1.0, low=0.0, open_low=True, doc="server learning rate")
    momentum: Scalar = hyper(0.9, low=0.0, high=1.0, open_high=True, doc="server momentum")

    citation = Citation(
        paper="Hsu et al., Measuring the Effects of Non-Identical Data Distribution, "
        "arXiv:1909.06335",
        read=("others' code",),
        equation="Sec. 4",
        reductions=(Reduction({"lr": 1.0, "momentum": 0.0}, "fedavg"),),
    )

    def optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(self.lr, self.momentum)  # type: ignore[arg-type]


class FedAdam(FedAvg):
    r"""Server Adam:
    $m \leftarrow \beta_1 m + (1 - \beta_1)\Delta,\; v \leftarrow \beta_2 v + (1 -
    \beta_2)\Delta^2,\; w \leftarrow w - \eta\, m / (\sqrt v + \tau)$,
    here with $\Delta = w - \bar w$.

    As published: no bias correction, $\tau$ outside the root, m = 0 and $v = \tau^2$ at first.
    Optax's Adam corrects the bias, so it is another method; pass it to `FedAvg(server=...)` if that
    is what you want. The authors' code (github.com/google-research/federated) corrects it too. Some
    code bases start with v = 0, `v0=0.0`, as FedAWARE's does (baselines/fedopt.py), which has this
    recursion otherwise.

    Args:
        lr: $\eta$, above 0.
        b1, b2: decay of the moments, in [0, 1).
        tau: $\tau$, degree of adaptivity, above 0.
        v0: initial v in units of $\tau^2$, at least 0; 1 as published.

    Source: Reddi et al., Adaptive Federated Optimization, ICLR 2021, Alg. 2.
    """

    lr: Scalar = hyper(0.01, low=0.0, open_low=True, doc="server learning rate")
    b1: Scalar = hyper(0.9, low=0.0, high=1.0, open_high=True, doc="decay of the first moment")
    b2: Scalar = hyper(0.99, low=0.0, high=1.0, open_high=True, doc="decay of the second moment")
    tau: Scalar = hyper(1e-3, low=0.0, open_low=True, doc="degree of adaptivity")
    v0: Scalar = hyper(1.0, low=0.0, doc="initial second moment, in units of tau squared")

    citation = Citation(
        paper=REDDI,
        read=("authors' code", "others' code"),
        equation="Alg. 2 (FedAdam)",
    )

    def second_moment(self, v: Vector, delta: Vector) -> Vector:
        return self.b2 * v + (1 - self.b2) * delta**2

    def optimizer(self) -> optax.GradientTransformation:
        """Returns Alg. 2 as an Optax transformation; Optax's own chains correct the bias of the
        moments.
        """

        def init(w: Vector) -> tuple[Vector, Vector]:
            return jnp.zeros_like(w), jnp.full_like(w, self.v0 * self.tau**2)

        def update(
            delta: Vector, state: tuple[Vector, Vector], w: Vector | None = None
        ) -> tuple[Vector, tuple[Vector, Vector]]:
            m = self.b1 * state[0] + (1 - self.b1) * delta
            v = self.second_moment(state[1], delta)
            return -self.lr * m / (jnp.sqrt(v) + self.tau), (m, v)

        return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


class FedYogi(FedAdam):
    r"""As `FedAdam` with $v \leftarrow v - (1 - \beta_2)\, \Delta^2\, \mathrm{sign}(v - \Delta^2)$.

    Source: Reddi et al., Adaptive Federated Optimization, ICLR 2021, Alg. 2.
    """

    citation = Citation(
        paper=REDDI,
        read=("authors' code", "others' code"),
        equation="Alg. 2 (FedYogi)",
    )

    def second_moment(self, v: Vector, delta: Vector) -> Vector:
        return v - (1 - self.b2) * delta**2 * jnp.sign(v - delta**2)


class FedAdagrad(FedAdam):
    r"""As `FedAdam` with $v \leftarrow v + \Delta^2$; `b2` has no effect, and $\beta_1 = 0$ is the
    usual choice.

    Source: Reddi et al., Adaptive Federated Optimization, ICLR 2021, Alg. 2.
    """

    b1: Scalar = hyper(0.0, low=0.0, high=1.0, open_high=True, doc="decay of the first moment")

    citation = Citation(
        paper=REDDI,
        read=("authors' code", "others' code"),
        equation="Alg. 2 (FedAdagrad)",
    )

    def second_moment(self, v: Vector, delta: Vector) -> Vector:
        return v + delta**2
