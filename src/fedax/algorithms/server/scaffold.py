"""SCAFFOLD: control variates against client drift."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    ClientStates,
    Federation,
    Layout,
    LocalProblem,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class ScaffoldState(eqx.Module):
    """The global model x, the server's control variate c, and the clients' own."""

    w: Vector
    c: Vector
    clients: ClientStates


class SCAFFOLD(Algorithm[ScaffoldState]):
    r"""Local steps are corrected by the difference of a global and a local control variate.

    $$ y_k \leftarrow y_k - \eta_l (g_k(y_k) - c_k + c), \qquad
       c_k^+ = \begin{cases} \nabla f_k(x) & \text{option I} \\
                c_k - c + \frac{1}{K \eta_l}(x - y_k) & \text{option II} \end{cases} $$
    $$ x \leftarrow x + \eta_g \frac{\sum_S p_k (y_k - x)}{\sum_S p_k}, \qquad c \leftarrow c +
    \sum_S p_k (c_k^+ - c_k). $$

    The paper has equal weights $p_k = 1/N$; here they are those of the objective, with each client
    of S once, however clients are drawn, so that c stays $\sum_k p_k c_k$ and the optimum of
    $\sum_k p_k f_k$ is reached. All control variates start at zero.

    `control_weights="uniform"` averages control variates with $1/N$ and models with $p_k$, as the
    code released for FedBC does. With unequal $p_k$ and full gradients its fixed point is the
    optimum of $\frac1N \sum_k f_k$, not that of the objective.

    `form="as_released"` is the local work of that code:
    $y \leftarrow y - \eta_l v - \eta_l (c - c_k)$, where $v$ is the solver's momentum of the
    gradients alone, and all control variates start at the parameters of one random network, uniform
    in $\pm 1/\sqrt m$ for a leaf of $m$ inputs.

    Args:
        lr: $\eta_g$, above 0.
        option: "I" (one more pass over the client's examples) or "II" (needs SGD without momentum
            as the solver, unless the form is "as_released").
        control_weights: weights in the mean of control variates: "objective" ($p_k$) or "uniform"
            ($1/N$).
        form: "as_written", or "as_released" with FedBC.

    Example:
        >>> import fedax
        >>> method = fedax.SCAFFOLD(option="I")
        >>> released = fedax.SCAFFOLD(control_weights="uniform", form="as_released")

    Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
    ICML 2020, Alg. 1, eq. (4).
    """

    lr: Scalar = hyper(1.0, low=0.0, open_low=True, doc="server learning rate")
    option: str = hyper("II", choices=("I", "II"), doc="form of a client's control variate")
    control_weights: str = hyper(
        "objective",
        choices=("objective", "uniform"),
        later=True,
        doc="weights in the mean of control variates",
    )
    form: str = hyper(
        "as_written",
        choices=("as_written", "as_released"),
        later=True,
        doc="local steps and start of control variates",
    )

    citation = Citation(
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated "
        "Learning, ICML 2020",
        read=("paper", "others' code"),
        equation="Alg. 1, eq. (4)",
        by_examples=True,
        exact=True,
    )

    def init(self, fed: Federation, w: Vector) -> ScaffoldState:
        c = (
            jnp.zeros_like(w)
            if self.form == "as_written"
            else random_network(fed.layout, fed.key("controls"))
        )
        return ScaffoldState(w, c, fed.client_states(c))

    def round(self, fed: Federation, state: ScaffoldState) -> ScaffoldState:
        cohort = fed.sample().distinct
        x = state.w
        c = state.c
        (dx, dc), states = fed.average(self.train, cohort, x, c, states=state.clients)
        # c is a sum over all clients, of which the cohort's part moves
        coverage = fed.answered.coverage
        # with equal weights this is the same number, except that privacy hides how many worked
        if self.control_weights == "uniform" and not fed.equal_weights:
            coverage = fed.answered.objective_weights.sum() / fed.clients
        return ScaffoldState(x + self.lr * dx, c + coverage * dc, states)

    def train(
        self, client: Client, x: Vector, c: Vector, c_k: Vector
    ) -> Upload[tuple[Vector, Vector]]:
        as_written = self.form == "as_written"
        y = client.minimize(
            LocalProblem(linear=c - c_k) if as_written else LocalProblem(drift=c - c_k), start=x
        )
        if self.option == "I":
            new_c_k = client.gradient(x)
        else:
            rate = client.learning_rate if as_written else client.nominal_learning_rate
            new_c_k = c_k - c + (x - y) / (rate * jnp.asarray(client.steps, x.dtype))
        change = new_c_k - c_k
        if self.control_weights == "uniform":  # cancels the weight that the mean multiplies by
            change = change / client.objective_weight
        return Upload((y - x, change), state=new_c_k, is_change=True)


def random_network(layout: Layout, key: Key[Array, ""]) -> Vector:
    r"""Returns parameters uniform in $\pm 1/\sqrt m$, with m the inputs of a leaf (of a vector: its
    length).
    """
    widths = [math.prod(shape[:-1] or shape) for shape in layout.shapes]
    bound = jnp.concatenate(
        [jnp.full(size, m**-0.5) for size, m in zip(layout.blocks, widths, strict=True)]
    )
    return jax.random.uniform(key, (layout.dim,), layout.dtype, -1, 1) * bound.astype(layout.dtype)
