"""SCAFFOLD: control variates against client drift."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from fedax.core import Algorithm, Card, Client, Federation, LocalProblem, Memory, Scalar, Upload, Vector, hyper


class ScaffoldState(eqx.Module):
    """The global model x, the server's control variate c, and the clients' own."""

    x: Vector
    c: Vector
    memory: Memory


class SCAFFOLD(Algorithm[ScaffoldState]):
    r"""Local steps are corrected by the difference of a global and a local control variate.

    $$ y_k \leftarrow y_k - \eta_l (g_k(y_k) - c_k + c), \qquad
       c_k^+ = \begin{cases} \nabla f_k(x) & \text{option I} \\
                c_k - c + \frac{1}{K \eta_l}(x - y_k) & \text{option II} \end{cases} $$
    $$ x \leftarrow x + \eta_g \frac{\sum_S p_k (y_k - x)}{\sum_S p_k}, \qquad c \leftarrow c + \sum_S p_k (c_k^+ - c_k). $$

    The paper has equal weights $p_k = 1/N$; here they are those of the objective, with each client of S once, however clients are
    drawn, so that c stays $\sum_k p_k c_k$ and the optimum of $\sum_k p_k f_k$ is reached. All control variates start at zero.

    Args:
        lr: $\eta_g$, above 0.
        option: "I" (one more pass over the client's examples) or "II" (needs SGD without momentum as the solver).

    Example:
        >>> import fedax
        >>> method = fedax.SCAFFOLD(option="I")

    Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, Alg. 1, eq. (4).
    """

    lr: Scalar = hyper(1.0, low=0.0, open_low=True, doc="server learning rate")
    option: str = hyper("II", choices=("I", "II"), doc="form of a client's control variate")

    card: ClassVar[Card] = Card(
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020",
        equation="Alg. 1, eq. (4)",
    )

    def init(self, fed: Federation, w: Vector) -> ScaffoldState:
        return ScaffoldState(w, jnp.zeros_like(w), fed.memory(jnp.zeros_like(w)))

    def round(self, fed: Federation, state: ScaffoldState) -> ScaffoldState:
        cohort, x, c = fed.sample().distinct, state.x, state.c
        (dx, dc), memory = fed.average(self.train, cohort, x, c, memory=state.memory)
        return ScaffoldState(x + self.lr * dx, c + fed.answered.part * dc, memory)

    def model(self, state: ScaffoldState) -> Vector:
        return state.x

    def train(self, client: Client, x: Vector, c: Vector, own: Vector) -> Upload[tuple[Vector, Vector]]:
        y = client.minimize(LocalProblem(linear=c - own), start=x)
        if self.option == "I":
            new = client.gradient(x)
        else:
            new = own - c + (x - y) / (client.learning_rate * jnp.asarray(client.steps, x.dtype))
        return Upload((y - x, new - own), memory=new)
