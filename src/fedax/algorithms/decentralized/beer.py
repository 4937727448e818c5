"""BEER: compressed models and compressed trackers of the mean gradient."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.communication.channel import Codec
from fedax.communication.codecs import Quantizer
from fedax.core import Citation, Client, ClientStates, Federation, Scalar, Upload, Vector, hyper


class Known(eqx.Module):
    """A vector's copy that the neighbours know, and the weighted mean of the copies around."""

    copy: Vector
    around: Vector

    def pull(self) -> Vector:
        """Returns where the neighbours pull."""
        return self.around - self.copy


class Beer(eqx.Module):
    """One client's state: its model, its tracker, its last gradient, and what is known of the
    first two.
    """

    x: Vector
    v: Vector
    g: Vector
    models: Known
    trackers: Known


class BEER(Gossip):
    r"""Gradient tracking that sends compressed differences to copies, twice a round: of the model
    and of the tracker.

    With copies $h_i$ of models and $b_i$ of trackers that the neighbours know, and a codec C:

    $$ v_i \leftarrow v_i + \gamma \sum_l w_{il} (b_l - b_i) + g_i(x_i) - g_i^{\text{last}}, \qquad
       b_i \leftarrow b_i + C(v_i - b_i), $$
    $$ x_i \leftarrow x_i + \gamma \sum_l w_{il} (h_l - h_i) - \eta v_i, \qquad h_i \leftarrow h_i +
    C(x_i - h_i), $$

    with old copies on the right. Trackers, their copies and the last gradient are zero at first;
    everybody knows the common start. The gradient is the mean direction of the round's local steps,
    $g_i(x_i) = (x_i - z_i) / (K \eta)$: with `Schedule(steps=1)`, as published, that of one
    minibatch. Needs SGD without momentum as the solver. The graph must not change.

    Args:
        gamma: $\gamma$, in (0, 1]; coarse codecs need a small one.
        topology, graph: as in `DFedAvgM`.
        code: the codec C, without feedback; a quantizer of 8 bits by default.

    Example:
        >>> import fedax
        >>> method, schedule = fedax.BEER(gamma=0.1), fedax.Schedule(steps=1)

    Source: Zhao et al., BEER: Fast O(1/T) Rate for Decentralized Nonconvex Optimization with
    Communication Compression, NeurIPS 2022, as in the authors' code (github.com/liboyue/beer,
    beer/optim/BEER.py).
    """

    gamma: Scalar = hyper(0.1, low=0.0, open_low=True, high=1.0, doc="consensus step")
    code: Codec | None = None

    is_fixed = True

    citation = Citation(
        paper="Zhao et al., BEER: Fast O(1/T) Rate for Decentralized Nonconvex Optimization, "
        "NeurIPS 2022",
        read=("authors' code",),
    )

    def init(self, fed: Federation, w: Vector) -> ClientStates:
        zero = jnp.zeros_like(w)
        # everybody starts at w, so its copy and the weighted mean of copies around it are w as well
        return fed.client_states(Beer(w, zero, zero, Known(w, w), Known(zero, zero)))

    def send(self, client: Client, state: Beer) -> Upload[Any]:
        rate = client.learning_rate
        code = self.code or Quantizer(8)
        g = client.mean_gradient(state.x - client.minimize(start=state.x))
        v = state.v + self.gamma * state.trackers.pull() + g - state.g
        x = state.x + self.gamma * state.models.pull() - rate * v
        messages = (
            code.message(x - state.models.copy, client.key("model")),
            code.message(v - state.trackers.copy, client.key("tracker")),
        )
        models, trackers = (
            Known(copies.copy + message.value, copies.around)
            for copies, message in zip((state.models, state.trackers), messages, strict=True)
        )
        return Upload(messages, state=Beer(x, v, g, models, trackers))

    def receive(self, client: Client, state: Beer, received: tuple[Vector, Vector]) -> Beer:
        models, trackers = (
            Known(copies.copy, copies.around + mean_message)
            for copies, mean_message in zip((state.models, state.trackers), received, strict=True)
        )
        return Beer(state.x, state.v, state.g, models, trackers)
