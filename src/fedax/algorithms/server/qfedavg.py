"""q-FedAvg: clients with larger losses count more."""

from jaxtyping import Array, Float

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    Federation,
    Reduction,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class QFedAvg(Algorithm[Vector]):
    r"""Averaging that flattens the clients' losses, for the objective
    $\sum_k \frac{p_k}{q+1} f_k(w)^{q+1}$.

    $$ g_k = \frac{w - w_k}{\eta}, \qquad \Delta_k = f_k(w)^q g_k, \qquad
       h_k = q f_k(w)^{q-1} \lVert g_k \rVert^2 + \frac{1}{\eta} f_k(w)^q, \qquad
       w \leftarrow w - \frac{\sum_S p_k \Delta_k}{\sum_S p_k h_k}, $$

    with $f_k$ the loss of the *received* model over the client's training examples (plus 1e-10, as
    the released code has it), $\eta$ the local learning rate (1/L in the paper). With q = 0 this is
    FedAvg. Needs SGD as the solver, without momentum unless the form is "as_released".

    Args:
        q: at least 0; larger is fairer and slower. Losses are at least 0: a run whose losses become
            negative, such as densities' logarithms, ends as non-finite. $f_k^q$ has to fit into the
            float type: with q = 15, losses from 0.003 to 350 in float32.
        form: "as_written", or "as_released" with FedBC, whose $h_k$ has $\lVert w - w_k \rVert^2$
            in place of $\lVert g_k \rVert^2$: another method, with far longer steps if $\eta$ is
            small. That code has momentum 0.5 in the local steps and divides by the learning rate
            alone.

    Example:
        >>> import fedax
        >>> method = fedax.QFedAvg(q=1.0)

    Source: Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Alg. 2, as in the
    authors' code (github.com/litian96/fair_flearn, flearn/trainers/qffedavg.py).
    """

    q: Scalar = hyper(1.0, low=0.0, doc="weight of larger losses")
    form: str = hyper(
        "as_written",
        choices=("as_written", "as_released"),
        doc="whether h has the gradient or the distance",
    )

    citation = Citation(
        paper="Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020",
        read=("authors' code",),
        equation="Alg. 2",
        reductions=(Reduction({"q": 0.0}, "fedavg"),),
    )

    def round(self, fed: Federation, state: Vector) -> Vector:
        delta, h = fed.average(self.train, fed.sample(), state)
        return state - delta / h

    def train(self, client: Client, w: Vector) -> Upload[tuple[Vector, Float[Array, ""]]]:
        change = w - client.minimize(start=w)
        as_written = self.form == "as_written"
        rate = client.learning_rate if as_written else client.nominal_learning_rate
        g = change / rate
        square = g @ g if as_written else change @ change
        loss = client.loss(w) + 1e-10
        h = self.q * loss ** (self.q - 1) * square + loss**self.q / rate
        return Upload((loss**self.q * g, h), is_change=True)
