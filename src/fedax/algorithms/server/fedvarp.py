"""FedVARP and MIFA: every client's last change stands for it while it is away."""

import equinox as eqx
import jax.numpy as jnp

from fedax.core import (
    Algorithm,
    Citation,
    Client,
    ClientStates,
    Federation,
    Scalar,
    Upload,
    Vector,
    hyper,
)


class LastChanges(eqx.Module):
    r"""The global model, the mean $\sum_k p_k y_k$ of all clients' last changes, and these."""

    w: Vector
    mean: Vector
    clients: ClientStates


class FedVARP(Algorithm[LastChanges]):
    r"""The clients that are away are represented by their last changes, so that the draw of a
    cohort adds less variance.

    $$ \Delta_k = w_k - w, \qquad
       w \leftarrow w + \eta \Big( \frac{\sum_S p_k (\Delta_k - y_k)}{\sum_S p_k} + \sum_k p_k y_k
       \Big), \qquad
       y_k \leftarrow \Delta_k \; (k \in S). $$

    All $y_k$ are zero at first. As in SAGA the direction is unbiased for a uniform draw, with
    $\sum_k p_k y_k$ taken before its update; `MIFA` takes it afterwards. With everybody in every
    round both are FedAvg.

    The paper has equal weights $p_k = 1/N$ and keeps all $y_k$ at the server. Here the weights are
    those of the objective, with each client of S once, and a client keeps its own $y_k$ and uploads
    $\Delta_k - y_k$: the server needs the memory of two models, whatever the number of clients.
    Changes are remembered as they are; with a decaying learning rate those of clients that were
    away for long are longer than new ones. With an asynchronous server only `weight="constant"`
    keeps the sum $\sum_k p_k y_k$ exact.

    Args:
        lr: $\eta$, above 0.

    Example:
        >>> import fedax
        >>> method = fedax.FedVARP()

    Source: Jhunjhunwala, Sharma, Nagarkatti and Joshi, FedVARP: Tackling the Variance Due to
    Partial Client Participation in Federated Learning, UAI 2022, as in a public implementation that
    is not the authors'.
    """

    lr: Scalar = hyper(1.0, low=0.0, open_low=True, doc="server learning rate")

    citation = Citation(
        paper="Jhunjhunwala, Sharma, Nagarkatti and Joshi, FedVARP, UAI 2022",
        read=("others' code",),
    )

    def init(self, fed: Federation, w: Vector) -> LastChanges:
        return LastChanges(w, jnp.zeros_like(w), fed.client_states(jnp.zeros_like(w)))

    def round(self, fed: Federation, state: LastChanges) -> LastChanges:
        news, states = fed.average(self.train, fed.sample().distinct, state.w, states=state.clients)
        # the mean is a sum over all clients, of which the cohort's part moves
        mean = state.mean + fed.answered.coverage * news
        return LastChanges(state.w + self.lr * self.direction(state.mean, news, mean), mean, states)

    def direction(self, mean: Vector, news: Vector, new_mean: Vector) -> Vector:
        r"""Returns the direction of the server's step.

        Args:
            mean: $\sum_k p_k y_k$ before the round.
            news: the cohort's mean of $\Delta_k - y_k$.
            new_mean: $\sum_k p_k y_k$ after the round.
        """
        return mean + news

    def train(self, client: Client, w: Vector, y_k: Vector) -> Upload[Vector]:
        change = client.minimize(start=w) - w
        return Upload(change - y_k, state=change, is_change=True)


class MIFA(FedVARP):
    r"""In every round the server steps along the mean of all clients' last changes, however old
    they are.

    $$ y_k \leftarrow w_k - w \; (k \in S), \qquad w \leftarrow w + \eta \sum_k p_k y_k. $$

    Made for clients that are away for reasons of their own: no availability has to be known, and
    clients that come often do not count more. As in SAG the direction is biased by old changes. A
    client that never came counts as a change of zero, as in the released trainer that does not
    wait; that of the paper waits at first until everybody was there.

    The paper has equal weights $p_k = 1/N$. It divides a change by the learning rate of its own
    round and multiplies the mean by the current one; here changes are remembered as they are, which
    is the same as long as the learning rate does not decay. With an asynchronous server only
    `weight="constant"` keeps the sum $\sum_k p_k y_k$ exact.

    Args:
        lr: $\eta$, above 0.

    Example:
        >>> import fedax
        >>> method = fedax.MIFA()

    Source: Gu, Huang, Zhang and Huang, Fast Federated Learning in the Presence of Arbitrary Device
    Unavailability, NeurIPS 2021, as in the authors' code (github.com/hmgxr128/MIFA_code,
    fdu_no_wait.py); of the paper the introduction was read.
    """

    citation = Citation(
        paper="Gu, Huang, Zhang and Huang, Fast Federated Learning in the Presence of Arbitrary "
        "Device Unavailability, NeurIPS 2021",
        read=("abstract", "authors' code"),
    )

    def direction(self, mean: Vector, news: Vector, new_mean: Vector) -> Vector:
        return new_mean
