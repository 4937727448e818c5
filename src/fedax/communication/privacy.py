"""Differential privacy of clients on the wire: bounded uploads, and Gaussian noise on their mean or
on each.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from fedax.core.hyper import check_declared, hyper
from fedax.errors import InvalidInput
from fedax.utils.layout import accumulator
from fedax.utils.norms import scale_of
from fedax.utils.numbers import python_numbers

WHERE = ("server", "client")
"""The choices of `Privacy(where=...)`."""


class Privacy(eqx.Module):
    r"""Differential privacy of whole clients, as a part of a `fedax.Channel`.

    Every part $u_k$ of an upload (a vector or a number; of a trained model its change) is clipped,
    $\bar u_k = u_k \min(1, C / \lVert u_k \rVert)$, and the mean is

    $$ \frac{1}{m} \Bigl( \sum_k \bar u_k + \mathcal{N}(0, J z^2 C^2 I) \Bigr), $$

    with m the number of clients that is expected (`cohort`, or all) and J the number of parts, so
    that one phase is a Gaussian mechanism with noise multiplier z. All clients count alike: the
    schedule has `weights="equal"`. With `where="client"` each client adds $\mathcal{N}(0, J z^2 C^2
    I)$ to its own parts before they leave it.

    $\varepsilon$ compares two populations. With everyone or Poisson sampling, one client's uploads
    are 0 in one of them (it takes no part), and the number of clients stays. With draws of a fixed
    number (`sampling="uniform"`) and with `where="client"`, one client has any other data in its
    place. A sum then moves by up to 2C in place of C.

    Simulations, and the MPI engine, draw cohorts and noise from the seed, so that a run can be
    repeated. They show what privacy costs; their models protect nobody from a reader who knows the
    seed. Over Flower noise and cohorts are secret.

    Args:
        clip: C, finite and above 0; or one for each part of a round's uploads, in their order.
        noise: z, finite and at least 0.
        delta: of the guarantee $(\varepsilon, \delta)$, in (0, 1); a run needs one below one over
            the number of clients.
        where: `"server"` (a server that is trusted, or sees sums only), or `"client"` (local
            differential privacy).
        quantile: of the lengths, to which each C is adapted from round to round, in [0, 1]; None
            keeps C. With `"server"` only.
        clip_rate: $\eta_C$ of this adaptation, $C \leftarrow C \exp(-\eta_C (\tilde b -
            \text{quantile}))$ with $\tilde b$ the noisy share of parts that were not longer than C;
            above 0.
        count_noise: $\sigma_b$, of the noise on the sum of $b_k - 1/2$, with $b_k$ = 1 for a part
            that was not longer than C, else 0. One client changes this sum by 1/2. Above z/2,
            because the noise takes a part of z; by default m/20.
        budget: the most $\varepsilon$ that a run may spend, above 0; it ends before the round that
            would exceed it. With `where="client"` over Flower every client also counts what it
            sends in all runs, and sends nothing beyond its budget.

    Example:
        >>> import fedax
        >>> channel = fedax.Channel(
        ...     privacy=fedax.Privacy(clip=0.5, noise=1.0, delta=1e-3, budget=8.0)
        ... )

    Raises:
        InvalidInput: a value out of its range.

    Source: McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language
    Models, ICLR 2018, Alg. 1 (flat clipping, the estimator with a fixed denominator); Andrew,
    Thakkar, McMahan and Ramaswamy, Differentially Private Learning with Adaptive Clipping, NeurIPS
    2021, Alg. 1, Theorem 1.
    """

    clip: float | tuple[float, ...] = eqx.field(static=True, default=1.0, converter=python_numbers)
    noise: float = hyper(1.0, static=True, low=0.0)
    delta: float = hyper(1e-5, static=True, low=0.0, high=1.0, open_low=True, open_high=True)
    where: str = hyper("server", choices=WHERE)
    quantile: float | None = hyper(None, kind=float, static=True, low=0.0, high=1.0, optional=True)
    clip_rate: float = hyper(0.2, static=True, low=0.0, open_low=True)
    count_noise: float | None = hyper(None, kind=float, static=True, low=0.0, optional=True)
    budget: float = hyper(math.inf, static=True, low=0.0, open_low=True)

    def __check_init__(self) -> None:
        check_declared(self)
        clips = self.clip if isinstance(self.clip, tuple) else (self.clip,)
        is_valid = clips and all(isinstance(c, int | float) and 0 < c < math.inf for c in clips)
        self._require("clip", bool(is_valid), "finite numbers > 0, or a tuple of them")
        half = self.noise / 2
        fits = self.count_noise is None or self.count_noise > half
        self._require("count_noise", fits, f"numbers > {half:g}, half the noise, or None")
        fits = self.quantile is None or self.where == "server"
        allowed = 'None with where="client": only a server sees a share'
        self._require("quantile", fits, allowed)

    def _require(self, field: str, is_valid: bool, allowed: str) -> None:
        if not is_valid:
            raise InvalidInput.of(f"Privacy({field}=...)", getattr(self, field), allowed)

    def bounds(self, parts: int) -> tuple[float, ...]:
        """Returns the bounds C of all parts of a round.

        Raises:
            InvalidInput: another number of them was given.
        """
        if not isinstance(self.clip, tuple):
            return (float(self.clip),) * parts
        self._require(
            "clip",
            len(self.clip) == parts,
            f"a number, or {parts} of them, one for each part of a round's uploads",
        )
        return tuple(map(float, self.clip))

    def count_noise_of(self, expected: int) -> float:
        r"""Returns $\sigma_b$ of a phase with this expected number of clients.

        Raises:
            InvalidInput: the default is not above half the noise.
        """
        if self.count_noise is not None:
            return self.count_noise
        default = expected / 20
        if default <= self.noise / 2:
            allowed = (
                f"finite numbers > {self.noise / 2:g}, half the noise; the default is "
                f"{default:g}, a 20th of the clients"
            )
            raise InvalidInput.of("Privacy(count_noise=...)", None, allowed)
        return default

    def noise_of_values(self, expected: int) -> float:
        r"""Returns the noise multiplier of the uploads themselves.

        It is $(z^{-2} - (2 \sigma_b)^{-2})^{-1/2}$ where C is adapted, z otherwise.

        Source: Andrew et al. 2021, Theorem 1.
        """
        if self.quantile is None or not self.noise:
            return self.noise
        return (self.noise**-2 - (2 * self.count_noise_of(expected)) ** -2) ** -0.5


class Bounded(eqx.Module):
    """Clipped parts of an upload, or of a sum of uploads.

    Attributes:
        value: the parts.
        inside: for each part 1/2 if its length before was within the bound and -1/2 if not, or the
            sum of these. Centred indicators halve what one client changes, which the accounting of
            adaptive clipping counts on; a client that is absent adds 0.
    """

    value: PyTree
    inside: Float[Array, "*rows parts"]


def clip_leaves(
    value: PyTree, bounds: Float[Array, "parts"], reference: Float[Array, "dim"] | None = None
) -> Bounded:
    """Clips each part of an upload to its bound.

    The first vector is the difference to `reference`, if that is given.
    """
    leaves, structure = jax.tree.flatten(value)
    inside = []
    # `bounds` follows the order of the leaves
    for i, leaf in enumerate(leaves):
        if reference is not None and jnp.ndim(leaf) == 1:
            leaf = leaf - reference
            reference = None
        wide = jnp.asarray(leaf, accumulator(leaf.dtype))
        scale = scale_of(wide)  # squares of a long upload do not fit
        scaled = wide / scale
        bound = bounds[i].astype(wide.dtype)
        length = jnp.sqrt(jnp.sum(scaled * scaled))
        # compared in units of `scale`, in which squares fit
        is_inside = length <= bound / scale
        factor = jnp.where(is_inside, 1, bound / jnp.where(is_inside, 1, length))
        # a part within its bound keeps its bits
        leaves[i] = jnp.where(is_inside, leaf, _round_down(scaled * factor, leaf.dtype))
        inside.append(is_inside.astype(jnp.float32) - 0.5)
    flags = jnp.stack(inside) if inside else jnp.zeros(0, jnp.float32)  # nothing may be sent
    return Bounded(jax.tree.unflatten(structure, leaves), flags)


def _round_down(v: Array, dtype: Any) -> Array:
    """Rounds to a float type toward 0, so that a clipped part does not exceed its bound."""
    rounded = v.astype(dtype)
    if rounded.dtype == v.dtype:
        return rounded
    is_longer = jnp.abs(rounded.astype(v.dtype)) > jnp.abs(v)
    return jnp.where(is_longer, jnp.nextafter(rounded, jnp.zeros_like(rounded)), rounded)


def add_noise(
    tree: PyTree, deviations: Any, key: Key[Array, ""], gaussians: Sequence[Array] | None = None
) -> PyTree:
    """Returns a pytree with Gaussian noise on every leaf.

    Args:
        tree: the values.
        deviations: one for each leaf. A Python 0.0 leaves the leaf as it is.
        key: of the noise, where `gaussians` is not given.
        gaussians: standard Gaussian numbers for each leaf.
    """
    leaves, structure = jax.tree.flatten(tree)
    for i, leaf in enumerate(leaves):
        # a Python zero adds no operation, and the leaf keeps its bits
        if isinstance(deviations[i], float) and not deviations[i]:
            continue
        # half precision has no room for small deviations and for the tails of the noise; the sum
        # is rounded to it, which reveals nothing more
        wide = accumulator(leaf.dtype)
        if gaussians is None:
            xi = jax.random.normal(jax.random.fold_in(key, i), jnp.shape(leaf), wide)
        else:
            if jnp.shape(gaussians[i]) != jnp.shape(leaf):
                raise ValueError(
                    f"noise of shape {jnp.shape(gaussians[i])} for a part of shape "
                    f"{jnp.shape(leaf)}"
                )
            xi = jnp.asarray(gaussians[i], wide)
        noisy = leaf.astype(wide) + jnp.asarray(deviations[i], wide) * xi
        leaves[i] = noisy.astype(leaf.dtype)
    return jax.tree.unflatten(structure, leaves)


def system_gaussians(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Draws standard Gaussian numbers of some shapes from the operating system's randomness, which
    nobody can predict or repeat.

    By the transform of Box and Muller, from uniform numbers of 53 bits.

    >>> [numbers.shape for numbers in system_gaussians([(3, 2), ()])]
    [(3, 2), ()]
    """
    sizes = [math.prod(shape) for shape in shapes]
    pairs = -(-sum(sizes) // 2)
    # two words of 53 bits make two Gaussian numbers
    words = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs) >> np.uint64(11)
    # the length in (0, 1]
    length = (words[0] + 1.0) * 2.0**-53
    angle = 2 * np.pi * words[1] * 2.0**-53
    radius = np.sqrt(-2 * np.log(length))
    numbers = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    chunks = np.split(numbers[: sum(sizes)], np.cumsum(sizes)[:-1]) if sizes else []
    return [chunk.reshape(shape) for chunk, shape in zip(chunks, shapes, strict=True)]


def derive_secret_key(key: Key[Array, ""], secret: Any) -> Key[Array, ""]:
    """Returns a key that nobody without the secret can derive; the key itself without one."""
    for word in () if secret is None else secret:
        key = jax.random.fold_in(key, word)
    return key


def add_reference(tree: PyTree, reference: Float[Array, "dim"] | None) -> PyTree:
    """Adds `reference`, if it is given, to the first vector of a pytree."""
    leaves, structure = jax.tree.flatten(tree)
    for i, leaf in enumerate(leaves):
        if reference is not None and jnp.ndim(leaf) == 1:
            leaves[i] = reference.astype(leaf.dtype) + leaf
            reference = None
    return jax.tree.unflatten(structure, leaves)
