"""Step sizes and bits of decentralized FedAvg that its bounds suggest."""

import math
from dataclasses import replace
from typing import Any

import scipy  # imports what is asked for, and only then

from fedax.theory._limits import check
from fedax.theory.dfedavgm.bounds import Rounding, Setting, effective_steps, stationarity_bound


def largest_step_size(*, smoothness: float, local_steps: int, momentum: float = 0.0) -> float:
    r"""Returns the step size at which $\gamma = 0$; below it the theorems hold.

    The root of $128 K^2 L^2 S \eta^2 + 64 K^2 L \eta = S$; without momentum
    $\eta \approx \frac{0.0152}{LK}$. It is the strictest of all conditions, also in the paper,
    where $64 L^2 K^2 \eta^2 + 64 L K \eta < 1$ makes it $\frac{0.0154}{LK}$.

    Args:
        smoothness: L, above 0.
        local_steps: K, at least 1.
        momentum: $\theta$ in [0, 1).

    Raises:
        InvalidInput: a number out of its range.

    >>> round(largest_step_size(smoothness=2.0, local_steps=5), 6)
    0.001517

    Source: Theorem 1, the condition on $\eta$, corrected.
    """
    check("largest_step_size", smoothness=smoothness, local_steps=local_steps, momentum=momentum)
    steps = effective_steps(local_steps=local_steps, momentum=momentum)
    # (S/K)^2; below is the positive root of the quadratic equation of the docstring
    ratio = (steps / local_steps) ** 2
    return min(
        (math.sqrt(1 + ratio / 8) - 1) / (4 * smoothness * steps),
        1 / (8 * smoothness * local_steps),
    )


def best_step_size(
    setting: Setting, rounding: Rounding | None = None, *, gap: float, rounds: int
) -> float:
    """Returns the step size with the smallest `stationarity_bound`, found numerically; the
    setting's own one does not count.

    Args:
        setting, rounding, gap, rounds: as in `stationarity_bound`.

    Raises:
        InvalidInput: a number out of its range.

    >>> setting = Setting(1.0, 0.0, 0.0, gradient_bound=1.0, local_steps=1, rate=1e-3)
    >>> best_step_size(setting, gap=1.0, rounds=1000).__round__(4)
    0.0076

    Source: Theorem 1, minimised.
    """
    largest = largest_step_size(
        smoothness=setting.smoothness, local_steps=setting.local_steps, momentum=setting.momentum
    )
    # rounding down doubles a part of D, so half of the step size is safe
    factor = 0.5 if rounding is not None and rounding.kind == "down" else 1.0

    def value(log: float) -> float:
        return stationarity_bound(
            replace(setting, rate=math.exp(log)), rounding, gap=gap, rounds=rounds
        )

    # on a logarithmic scale, over 13 decades below the largest step size
    high = math.log(largest * factor * (1 - 1e-9))
    result: Any = scipy.optimize.minimize_scalar(value, bounds=(high - 30, high), method="bounded")
    return math.exp(float(result.x))


def bit_threshold(*, dim: int, rounds_ratio: float = 9 / 4) -> float:
    r"""Returns the bits below which the quantised method sends less, if it takes r times the
    rounds.

    $b < \frac{32}{r} - \frac{32}{d}$.

    It is $(32 + db) r < 32 d$. For the paper's $r = \frac94$ that is
    $\frac{128}{9} - \frac{32}{d}$; Proposition 3 prints a plus.

    Args:
        dim: d, at least 1.
        rounds_ratio: r, above 0.

    Raises:
        InvalidInput: a number out of its range.

    >>> round(bit_threshold(dim=199_210), 2)
    14.22

    Source: Proposition 3, corrected.
    """
    check("bit_threshold", dim=dim, rounds_ratio=rounds_ratio)
    return 32 / rounds_ratio - 32 / dim
