r"""The theory of local gradient descent for convex losses.

All clients count alike, $f = \frac1M \sum_m f_m$, each $f_m$ is convex and L-smooth, and models meet at least every H steps.
With `fedax.LocalGD` this is a schedule with `weights="equal", batch_size="full"`.

Source: Khaled, Mishchenko, Richtarik, First Analysis of Local GD on Heterogeneous Data (arXiv:1909.04715).
"""

import math

import numpy as np
from jaxtyping import Array, Float

from fedax.core import InvalidInput


def variance(gradients: Float[Array | np.ndarray, "clients dim"]) -> float:
    r"""$\sigma^2 = \frac1M \sum_m \lVert \nabla f_m(x_*) \rVert^2$, how much the clients differ at the optimum.

    Args:
        gradients: every client's full gradient at a minimiser of f.

    >>> variance(np.array([[3.0, 0.0], [-3.0, 0.0]]))
    9.0

    Source: the definition after Assumption 1.
    """
    return float(np.mean(np.sum(np.asarray(gradients) ** 2, axis=1)))


def step_size(smoothness: float, interval: int) -> float:
    r"""The largest step size of the theorem, $\gamma = \frac{1}{4LH}$.

    Args:
        smoothness: L, that of the least smooth client; above 0.
        interval: H, the most steps between synchronisations; at least 1.

    Raises:
        InvalidInput: a number out of its range.

    >>> step_size(smoothness=2.0, interval=5)
    0.025

    Source: Theorem 1.
    """
    _check("step_size", smoothness=smoothness, interval=interval)
    return 1 / (4 * smoothness * interval)


def bound(
    *, distance: float, variance: float, smoothness: float, interval: int, steps: int, rate: float | None = None
) -> float:
    r"""How far the mean of the iterates is above the optimum at most.

    $$ f(\bar x_T) - f(x_*) \le \frac{2 \lVert x_0 - x_* \rVert^2}{\gamma T} + 24 \gamma^2 \sigma^2 H^2 L,
       \qquad \bar x_T = \frac1T \sum_{t<T} \frac1M \sum_m x^m_t. $$

    The second term does not fall with T: it is the floor. `fedax.LocalGD(returned="mean")` returns $\bar x_T$.

    Args:
        distance: $\lVert x_0 - x_* \rVert$, at least 0.
        variance: $\sigma^2$, at least 0; see `variance`.
        smoothness: L, that of the least smooth client; above 0.
        interval: H, the most steps between synchronisations; at least 1.
        steps: T, all steps of one client; at least 1.
        rate: $\gamma$, above 0 and at most `step_size(smoothness, interval)`, which is the default.

    Raises:
        InvalidInput: a number out of its range, or a step size for which nothing is proved.

    >>> bound(distance=1.0, variance=0.0, smoothness=1.0, interval=1, steps=800)
    0.01
    >>> bound(distance=0.0, variance=2.0, smoothness=1.0, interval=7, steps=10**9)
    3.0

    Source: Theorem 1, eq. (5).
    """
    _check("bound", distance=distance, variance=variance, smoothness=smoothness, interval=interval, steps=steps)
    most = step_size(smoothness, interval)
    rate = most if rate is None else rate
    if not 0 < rate <= most:
        raise InvalidInput.of("bound(rate=...)", rate, f"numbers in (0, 1/(4LH) = {most:g}]")
    return 2 * distance**2 / (rate * steps) + 24 * rate**2 * variance * interval**2 * smoothness


def communications(*, distance: float, variance: float, smoothness: float, accuracy: float) -> float:
    r"""Communications T/H that are enough for $f(\bar x_T) - f(x_*) \le \varepsilon$, with the best step size and H.

    $$ \frac{T}{H} \ge \frac{16 \lVert x_0 - x_* \rVert^2}{\varepsilon} \max\Big\{L, \sigma \sqrt{\frac{3L}{\varepsilon}}\Big\}. $$

    Args:
        distance, variance, smoothness: as in `bound`.
        accuracy: $\varepsilon$, above 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> communications(distance=1.0, variance=0.0, smoothness=2.0, accuracy=0.1)
    320.0

    Source: eq. (6).
    """
    _check("communications", distance=distance, variance=variance, smoothness=smoothness, accuracy=accuracy)
    return 16 * distance**2 / accuracy * max(smoothness, math.sqrt(3 * variance * smoothness / accuracy))


_POSITIVE = {"smoothness", "accuracy"}
_COUNTS = {"interval", "steps"}


def _check(function: str, **values: float) -> None:
    for name, value in values.items():
        counts, positive = name in _COUNTS, name in _POSITIVE
        fits = value > 0 if positive else value >= 1 if counts else value >= 0
        if not (fits and value < math.inf):
            allowed = (
                "numbers in (0, infinity)" if positive else "whole numbers >= 1" if counts else "numbers in [0, infinity)"
            )
            raise InvalidInput.of(f"{function}({name}=...)", value, allowed)
