"""Attacks at each client alone, on what it sends."""

import jax
from jaxtyping import Array, Float, Key

from fedax.communication.attacks.base import Attack
from fedax.core.hyper import Scalar, hyper


class SignFlip(Attack):
    r"""Hostile clients send the opposite of their change, $a - s (v - a)$ in place of v, with a the
    vector they started at.

    Vectors that are no changes of a known one, such as gradients, become $-s v$.

    Args:
        share, seed: as in `Attack`.
        scale: s, above 0.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.SignFlip(share=0.2, scale=4.0))

    Source: Li, Xu, Chen, Giannakis and Ling, RSA: Byzantine-Robust Stochastic Aggregation Methods
    for Distributed Learning from Heterogeneous Datasets, AAAI 2019, Sec. 5 (sign-flipping attack, s
    = 4).
    """

    scale: Scalar = hyper(
        1.0, low=0.0, open_low=True, doc="length of the wrong step in lengths of the right one"
    )

    def corrupt(
        self, v: Float[Array, "dim"], near: Float[Array, "dim"], key: Key[Array, ""]
    ) -> Float[Array, "dim"]:
        return near - self.scale * (v - near)


class Noise(Attack):
    r"""Hostile clients send $a + \sigma \xi$ in place of v, with standard normal $\xi$ and a the
    vector they started at, or 0.

    Args:
        share, seed: as in `Attack`.
        std: $\sigma$, above 0; 200 for gradients in the source.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(attack=fedax.attacks.Noise(share=0.2, std=10.0))

    Source: Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries, NIPS
    2017, Sec. 6 (Gaussian attack).
    """

    std: Scalar = hyper(1.0, low=0.0, open_low=True, doc="standard deviation of the noise")

    def corrupt(
        self, v: Float[Array, "dim"], near: Float[Array, "dim"], key: Key[Array, ""]
    ) -> Float[Array, "dim"]:
        return near + self.std * jax.random.normal(key, v.shape, v.dtype)
