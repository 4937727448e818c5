"""FedLC: cross entropy whose logits are calibrated by a client's numbers of examples by class."""

from typing import ClassVar

import jax.numpy as jnp

from fedax.algorithms.server.on_classes import (
    Gradient,
    OnClasses,
    class_frequencies,
    weighted_softmax_gradient,
)
from fedax.core import Card, Client, Scalar, Vector, hyper


class FedLC(OnClasses):
    r"""FedAvg on a cross entropy that asks for larger margins where a client has few examples of a
    class.

    With the client's numbers of examples $n_c$ of each class and the logits z, the local loss of an
    example of class y is

    $$ -\log \frac{\exp(z_y - \tau\, n_y^{-1/4})}{\sum_c \exp(z_c - \tau\, n_c^{-1/4})} . $$

    Classes of which the client has no example are left out of the sum: their logits get no gradient
    from this client. Needs integer labels `y` and class probabilities as predictions.

    Args:
        tau: $\tau$, at least 0; 0 is FedAvg where every client has all classes.

    Example:
        >>> import fedax
        >>> method = fedax.FedLC(tau=1.0)

    Source: Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration,
    ICML 2022, as in github.com/KarhouTam/FL-bench (src/client/fedlc.py), which is not the authors'
    code; of the paper the abstract was read.
    """

    tau: Scalar = hyper(1.0, low=0.0, doc="strength of the calibration")

    card: ClassVar[Card] = Card(
        paper="Zhang et al., Federated Learning with Label Distribution Skew via Logits "
        "Calibration, ICML 2022",
        equation="from a public implementation; paper not read",
    )

    def gradient(self, client: Client, w: Vector) -> Gradient:
        counts = jnp.asarray(client.size, w.dtype) * class_frequencies(client, w)
        calibration = jnp.exp(-self.tau * jnp.maximum(counts, 0.5) ** -0.25)
        return weighted_softmax_gradient(client, jnp.where(counts < 0.5, 0, calibration))
