r"""The theory of local gradient descent for convex losses.

All clients count alike, $f = \frac1M \sum_m f_m$, each $f_m$ is convex and L-smooth, and models
meet at least every H steps. With `fedax.LocalGD` this is a schedule with
`weights="equal", batch_size="full"`.

Source: Khaled, Mishchenko, Richtarik, First Analysis of Local GD on Heterogeneous Data
(arXiv:1909.04715).
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from fedax.core import InvalidInput
from fedax.theory._limits import check, check_rate


def variance(gradients: Float[Array | np.ndarray, "clients dim"]) -> float:
    r"""Returns $\sigma^2 = \frac1M \sum_m \lVert \nabla f_m(x_*) \rVert^2$, how much the clients
    differ at the optimum.

    Args:
        gradients: every client's full gradient at a minimiser of f.

    >>> variance(np.array([[3.0, 0.0], [-3.0, 0.0]]))
    9.0

    Source: the definition after Assumption 1.
    """
    return float(np.mean(np.sum(np.asarray(gradients) ** 2, axis=1)))


def step_size(smoothness: float, interval: int) -> float:
    r"""Returns the largest step size of the theorem, $\gamma = \frac{1}{4LH}$.

    Args:
        smoothness: L, that of the least smooth client; above 0.
        interval: H, the most steps between synchronisations; at least 1.

    Raises:
        InvalidInput: a number out of its range.

    >>> step_size(smoothness=2.0, interval=5)
    0.025

    Source: Theorem 1.
    """
    check("step_size", smoothness=smoothness, interval=interval)
    return 1 / (4 * smoothness * interval)


def bound(
    *,
    distance: float,
    variance: float,
    smoothness: float,
    interval: int,
    steps: int,
    rate: float | None = None,
) -> float:
    r"""Returns a bound on the suboptimality of the mean of the iterates.

    $$ f(\bar x_T) - f(x_*) \le \frac{2 \lVert x_0 - x_* \rVert^2}{\gamma T} + 24 \gamma^2 \sigma^2
    H^2 L,
       \qquad \bar x_T = \frac1T \sum_{t<T} \frac1M \sum_m x^m_t. $$

    The second term does not fall with T: it is the floor. `fedax.LocalGD(returned="mean")` returns
    $\bar x_T$.

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
    check(
        "bound",
        distance=distance,
        variance=variance,
        smoothness=smoothness,
        interval=interval,
        steps=steps,
    )
    rate = step_size(smoothness, interval) if rate is None else rate
    check_rate("bound(rate=...)", rate, step_size(smoothness, interval), "1/(4LH)")
    return 2 * distance**2 / (rate * steps) + 24 * rate**2 * variance * interval**2 * smoothness


class Plan(NamedTuple):
    """Numbers that belong together: `steps` T, `interval` H and the step size `rate`, all real:
    round T up and H down.
    """

    steps: float
    interval: float
    rate: float

    @property
    def communications(self) -> float:
        r"""T/H, the same for every step size: $\frac{16 \lVert x_0 - x_* \rVert^2}{\varepsilon}
        \max\{L, \sigma \sqrt{3L/\varepsilon}\}$, eq. (6).
        """
        return self.steps / self.interval


def plan(
    *,
    distance: float,
    variance: float,
    smoothness: float,
    accuracy: float,
    rate: float | None = None,
) -> Plan:
    r"""Returns the steps and the interval with the fewest communications, for any step size, with
    which $f(\bar x_T) - f(x_*) \le \varepsilon$.

    $$ T(\gamma) = \frac{4 \lVert x_0 - x_* \rVert^2}{\varepsilon \gamma}, \qquad
       H(\gamma) = \frac{1}{4 \gamma \max\{L, \sigma \sqrt{3L/\varepsilon}\}}. $$

    An interval below 1 says that the step size is too large for this accuracy; the default is the
    largest that gives H = 1.

    Args:
        distance, variance, smoothness: as in `bound`.
        accuracy: $\varepsilon$, above 0.
        rate: $\gamma$, above 0 and at most $\frac{1}{4L}$.

    Raises:
        InvalidInput: a number out of its range.

    >>> plan(distance=1.0, variance=0.0, smoothness=2.0, accuracy=0.125, rate=0.03125)
    Plan(steps=1024.0, interval=4.0, rate=0.03125)

    Source: Section 2.3, eq. (6) and after.
    """
    check("plan", distance=distance, variance=variance, smoothness=smoothness, accuracy=accuracy)
    # the larger of the two terms decides how many steps may lie between communications
    scale = max(smoothness, math.sqrt(3 * variance * smoothness / accuracy))
    rate = 1 / (4 * scale) if rate is None else rate
    check_rate("plan(rate=...)", rate, step_size(smoothness, 1), "1/(4L)")
    return Plan(4 * distance**2 / (accuracy * rate), 1 / (4 * rate * scale), rate)


def best_interval(
    *,
    distance: float,
    variance: float,
    smoothness: float,
    accuracy: float,
    rate: float,
    price: float,
) -> int:
    r"""Returns the interval H with which the bound promises $\varepsilon$ at the least cost.

    A communication costs c gradients.

    $$ \min_H \; T \Big(1 + \frac cH\Big), \qquad \gamma \le \frac{1}{4LH}, \qquad
       T = \frac{2 \lVert x_0 - x_* \rVert^2}{\gamma (\varepsilon - 24 \gamma^2 \sigma^2 H^2 L)}. $$

    Intervals up to 100,000 are looked at. The step size is given, as in the paper's experiments.
    With a free one H = 1 is best at any price: T/H does not depend on H then (`plan`), while T
    grows with it.

    Args:
        distance, variance, smoothness, accuracy: as in `plan`.
        rate: $\gamma$, above 0 and at most $\frac{1}{4L}$.
        price: c, above 0.

    Raises:
        InvalidInput: a number out of its range, or a step size with which the bound does not reach
            the accuracy.

    >>> options = {
    ...     "distance": 1.0,
    ...     "variance": 1.0,
    ...     "smoothness": 1.0,
    ...     "accuracy": 0.1,
    ...     "rate": 0.01,
    ... }
    >>> [best_interval(price=price, **options) for price in (0.1, 1.0, 10.0, 1000.0)]
    [1, 2, 3, 4]

    Source: eq. (5); the question of the right panels of Figures 1 and 2.
    """
    arguments = {
        "distance": distance,
        "variance": variance,
        "smoothness": smoothness,
        "accuracy": accuracy,
    }
    check("best_interval", price=price, **arguments)
    check_rate("best_interval(rate=...)", rate, step_size(smoothness, 1), "1/(4L)")
    # all intervals for which the step size is allowed: at most 1/(4LH)
    intervals = np.arange(1, min(100_000, int(1 / (4 * smoothness * rate) * (1 + 1e-12))) + 1)
    # accuracy left for the first term of the bound: what the floor does not take
    remaining = accuracy - 24 * rate**2 * variance * intervals**2 * smoothness
    if remaining[0] <= 0:
        largest = math.sqrt(accuracy / (24 * variance * smoothness))
        raise InvalidInput.of(
            "best_interval(rate=...)",
            rate,
            f"numbers below {largest:g}, with which H = 1 reaches the accuracy",
        )
    # longer intervals have a higher floor, above the accuracy from some interval on
    reached = remaining > 0
    # without the common factors
    cost = (1 + price / intervals[reached]) / remaining[reached]
    return int(intervals[np.argmin(cost)])
