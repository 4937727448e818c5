"""BEER: compressed models and compressed trackers of the mean gradient."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithms.decentralized.gossip import Gossip
from fedax.communication.channel import Codec
from fedax.communication.codecs import Quantizer
from fedax.core import Card, Client, Federation, Memory, Scalar, Upload, Vector, hyper


class Known(eqx.Module):
    """A vector's copy that the neighbours know, and the weighted mean of the copies around."""

    copy: Vector
    around: Vector

    def toward(self) -> Vector:
        """Returns where the neighbours pull."""
        return self.around - self.copy


class Beer(eqx.Module):
    """One client's memory: its model, its tracker, its last gradient, and what is known of the
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
    beer/optim/BEER.py); the paper was not read.
    """

    gamma: Scalar = hyper(0.1, low=0.0, open_low=True, high=1.0, doc="consensus step")
    code: Codec | None = None

    card: ClassVar[Card] = Card(
        paper="Zhao et al., BEER: Fast O(1/T) Rate for Decentralized Nonconvex Optimization, "
        "NeurIPS 2022",
        equation="BEER, from the authors' code; paper not read",
    )

    def __check_init__(self) -> None:
        self.require_fixed_graph()

    def init(self, fed: Federation, w: Vector) -> Memory:
        zero = jnp.zeros_like(w)
        # everybody starts at w, so its copy and the weighted mean of copies around it are w as well
        return fed.memory(Beer(w, zero, zero, Known(w, w), Known(zero, zero)))

    def send(self, client: Client, own: Beer) -> Upload[Any]:
        rate, code = client.learning_rate, self.code or Quantizer(8)
        g = (own.x - client.minimize(start=own.x)) / (rate * jnp.asarray(client.steps, own.x.dtype))
        v = own.v + self.gamma * own.trackers.toward() + g - own.g
        x = own.x + self.gamma * own.models.toward() - rate * v
        sent = (
            code.message(x - own.models.copy, client.key("model")),
            code.message(v - own.trackers.copy, client.key("tracker")),
        )
        models, trackers = (
            Known(known.copy + message.value, known.around)
            for known, message in zip((own.models, own.trackers), sent, strict=True)
        )
        return Upload(sent, memory=Beer(x, v, g, models, trackers))

    def receive(self, client: Client, own: Beer, received: tuple[Vector, Vector]) -> Beer:
        models, trackers = (
            Known(known.copy, known.around + heard)
            for known, heard in zip((own.models, own.trackers), received, strict=True)
        )
        return Beer(own.x, own.v, own.g, models, trackers)
