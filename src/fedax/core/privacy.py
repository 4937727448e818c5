"""Differential privacy of clients on the wire: bounded uploads, and Gaussian noise on their mean or on each."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fedax.core.arguments import checked_arguments
from fedax.core.errors import InvalidInput
from fedax.core.layout import accumulator
from fedax.core.work import real

WHERE = ("server", "client")
"""The choices of `Privacy(where=...)`."""


@checked_arguments
class Privacy(eqx.Module):
    r"""Differential privacy of whole clients, as a part of a `fedax.Channel`.

    Every part $u_k$ of an upload (a vector or a number; of a trained model its change) is clipped, $\bar u_k = u_k \min(1, C /
    \lVert u_k \rVert)$, and the mean is

    $$ \frac{1}{m} \Bigl( \sum_k \bar u_k + \mathcal{N}(0, J z^2 C^2 I) \Bigr), $$

    with m the number of clients that is expected (`cohort`, or all) and J the number of parts, so that one phase is a Gaussian
    mechanism with noise multiplier z. All clients count alike: the schedule has `weights="equal"`. With `where="client"` each
    client adds $\mathcal{N}(0, J z^2 C^2 I)$ to its own parts before they leave it.

    Args:
        clip: C, above 0; or one for each part of a round's uploads, in their order. Infinity is no clipping, for noise 0.
        noise: z, finite and at least 0.
        delta: of the guarantee $(\varepsilon, \delta)$, in (0, 1); smaller than one over the number of clients.
        where: `"server"` (a server that is trusted, or sees sums only), or `"client"` (local differential privacy).
        quantile: of the lengths, to which each C is adapted from round to round, in [0, 1]; None keeps C. With `"server"` only.
        clip_rate: $\eta_C$ of this adaptation, $C \leftarrow C \exp(-\eta_C (\tilde b - \text{quantile}))$ with $\tilde b$ the
            noisy share of parts that were not longer than C; above 0.
        count_noise: $\sigma_b$ of that share, above z/2, because it takes a part of z; by default m/20.
        budget: the most $\varepsilon$ that a run may spend; it ends before the round that would exceed it. Above 0.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(privacy=fedax.Privacy(clip=0.5, noise=1.0, delta=1e-3, budget=8.0))

    Raises:
        InvalidInput: a value out of its range.

    Source: McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018, Alg. 1 (flat
    clipping, the estimator with a fixed denominator); Andrew, Thakkar, McMahan and Ramaswamy, Differentially Private Learning with
    Adaptive Clipping, NeurIPS 2021, Alg. 1, Theorem 1.
    """

    clip: float | tuple[float, ...] = eqx.field(static=True, default=1.0)
    noise: float = eqx.field(static=True, default=1.0)
    delta: float = eqx.field(static=True, default=1e-5)
    where: str = eqx.field(static=True, default="server")
    quantile: float | None = eqx.field(static=True, default=None)
    clip_rate: float = eqx.field(static=True, default=0.2)
    count_noise: float | None = eqx.field(static=True, default=None)
    budget: float = eqx.field(static=True, default=math.inf)

    def __check_init__(self) -> None:
        clips = self.clip if isinstance(self.clip, tuple) else (self.clip,)
        longest = f"numbers in (0, infinity{']' if self.noise == 0 else ')'}, or a tuple of them"
        fits = clips and all(real(c) and c > 0 and (c < math.inf or self.noise == 0) for c in clips)
        hint = "" if self.noise == 0 else "Infinity needs noise=0: nothing bounds what one client may do."
        self._require("clip", bool(fits), longest, hint)
        self._require("noise", real(self.noise) and 0 <= self.noise < math.inf, "finite numbers >= 0")
        self._require("delta", real(self.delta) and 0 < self.delta < 1, "numbers in (0, 1)")
        self._require("where", self.where in WHERE, f"one of {WHERE}")
        self._require("quantile", self.quantile is None or _share(self.quantile), "numbers in [0, 1], or None")
        self._require(
            "quantile",
            self.quantile is None or self.where == "server",
            'None with where="client": only a server sees a share',
        )
        self._require("quantile", self.quantile is None or not self.open, "None with clip=infinity, which nothing adapts")
        self._require("clip_rate", real(self.clip_rate) and 0 < self.clip_rate < math.inf, "finite numbers > 0")
        least = self.noise / 2
        fits = self.count_noise is None or (real(self.count_noise) and least < self.count_noise < math.inf)
        self._require("count_noise", fits, f"finite numbers > {least:g}, half the noise, or None")
        self._require("budget", real(self.budget) and self.budget > 0, "numbers > 0")

    def _require(self, field: str, fits: bool, allowed: str, hint: str = "") -> None:
        if not fits:
            raise InvalidInput.of(f"Privacy({field}=...)", getattr(self, field), allowed, hint)

    @property
    def open(self) -> bool:
        """Whether some part is not clipped: then there is no guarantee, and means are the plain ones."""
        return math.inf in (self.clip if isinstance(self.clip, tuple) else (self.clip,))

    def bounds(self, parts: int) -> tuple[float, ...]:
        """C of every part of a round.

        Raises:
            InvalidInput: another number of them was given.
        """
        if not isinstance(self.clip, tuple):
            return (float(self.clip),) * parts
        self._require(
            "clip", len(self.clip) == parts, f"a number, or {parts} of them, one for each part of a round's uploads"
        )
        return tuple(map(float, self.clip))

    def count_noise_of(self, expected: int) -> float:
        r"""$\sigma_b$ in a phase with so many expected clients.

        Raises:
            InvalidInput: the default is not above half the noise.
        """
        if self.count_noise is not None:
            return self.count_noise
        usual = expected / 20
        if usual <= self.noise / 2:
            allowed = f"finite numbers > {self.noise / 2:g}, half the noise; the default is {usual:g}, a 20th of the clients"
            raise InvalidInput.of("Privacy(count_noise=...)", None, allowed)
        return usual

    def noise_of_values(self, expected: int) -> float:
        r"""The multiplier of the uploads' own noise, $(z^{-2} - (2 \sigma_b)^{-2})^{-1/2}$ where C is adapted, z otherwise.

        Source: Andrew et al. 2021, Theorem 1.
        """
        if self.quantile is None or not self.noise:
            return self.noise
        return (self.noise**-2 - (2 * self.count_noise_of(expected)) ** -2) ** -0.5


def _share(value: Any) -> bool:
    return real(value) and 0 <= value <= 1


class Bounded(eqx.Module):
    """An upload's parts after clipping, or their sum, and for each whether it was short enough before, or how many were."""

    value: PyTree
    inside: Float[Array, "parts"]


def bounded(value: PyTree, bounds: Float[Array, "parts"], near: Float[Array, "dim"] | None = None) -> Bounded:
    """An upload's parts, each at most as long as its bound; the first vector is the difference to `near`, if that is given."""
    leaves, structure = jax.tree.flatten(value)
    inside = []
    for i, leaf in enumerate(leaves):
        if near is not None and jnp.ndim(leaf) == 1:
            leaf, near = leaf - near, None
        wide = jnp.asarray(leaf, accumulator(leaf.dtype))
        length, bound = jnp.sqrt(jnp.sum(wide * wide)), bounds[i].astype(wide.dtype)
        factor = jnp.where(length <= bound, 1, bound / jnp.where(length <= bound, 1, length)).astype(leaf.dtype)
        leaves[i] = leaf * factor
        inside.append((length <= bound).astype(jnp.float32))
    return Bounded(jax.tree.unflatten(structure, leaves), jnp.stack(inside))


def noised(tree: PyTree, deviations: Any, key: Key[Array, ""]) -> PyTree:
    """A pytree with Gaussian noise on every leaf; a deviation of 0, known beforehand, leaves it as it is."""
    leaves, structure = jax.tree.flatten(tree)
    for i, leaf in enumerate(leaves):
        if isinstance(deviations[i], float) and not deviations[i]:
            continue
        xi = jax.random.normal(jax.random.fold_in(key, i), jnp.shape(leaf), leaf.dtype)
        leaves[i] = leaf + jnp.asarray(deviations[i], leaf.dtype) * xi
    return jax.tree.unflatten(structure, leaves)


class LocalNoise(eqx.Module):
    """Clipping and noise at a client, before anything leaves it.

    Attributes:
        privacy: with `where="client"`.
        bounds: C of every part of this phase.
        secret: numbers that only this client has, from which its noise is drawn; None in a simulation, which has to be repeatable.
    """

    privacy: Privacy
    bounds: tuple[float, ...] = eqx.field(static=True)
    secret: Any = None

    def __call__(self, value: PyTree, near: Float[Array, "dim"] | None, key: Key[Array, ""]) -> PyTree:
        """The parts as they leave the client; the first vector is one near `near` again, if that is given."""
        key = hidden(key, self.secret)
        parts = bounded(value, jnp.asarray(self.bounds, float), near).value
        share = self.privacy.noise * math.sqrt(len(self.bounds))
        return moved(noised(parts, [share * c for c in self.bounds] if share else [0.0] * len(self.bounds), key), near)


def hidden(key: Key[Array, ""], secret: Any) -> Key[Array, ""]:
    """A key that nobody without the secret can tell; the key itself without one."""
    for word in () if secret is None else secret:
        key = jax.random.fold_in(key, word)
    return key


def moved(tree: PyTree, near: Float[Array, "dim"] | None) -> PyTree:
    """A pytree whose first vector is added to `near`, if that is given."""
    leaves, structure = jax.tree.flatten(tree)
    for i, leaf in enumerate(leaves):
        if near is not None and jnp.ndim(leaf) == 1:
            leaves[i], near = near.astype(leaf.dtype) + leaf, None
    return jax.tree.unflatten(structure, leaves)
